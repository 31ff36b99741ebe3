"""From a request to what the engine can read: checked, rendered, tokenised.  Pure; runs off the event loop.

Knows the model's sizes, vocabulary and template; no actor, no queue, no engine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Protocol

from attrs import frozen

from strata.actors.checks import check_messages, check_request
from strata.actors.text import TextWriter
from strata.config import RequestSettings
from strata.errors import PromptTooLong
from strata.messages import ChatMessage, Request, Sampling
from strata.scheduling.prefix import chain

MESSAGE_CHARACTERS: Final = 50


class Tokenizer(Protocol):
    """What this room asks of a model's vocabulary; ids are 0 to `vocab_size` - 1."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_ids(self) -> frozenset[int]:
        """Tokens that are no text: ends of turns and the like."""

    @property
    def longest_token(self) -> int:
        """Bytes of text that one token stands for at most."""

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...

    def token_bytes(self, token: int, /) -> bytes: ...


class Template(Protocol):
    def render(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> str:
        """The chat as one text.  Raises InvalidRequest where the template refuses it."""


@frozen(kw_only=True)
class Language:
    """How a model is spoken to, and by which names."""

    tokenizer: Tokenizer
    template: Template
    context: int
    """The longest sequence (tokens), prompt and answer together."""
    names: frozenset[str]
    quick_characters: int = 0
    """A chat of at most so many is prepared in the event loop: that costs less than the way to a thread and back."""

    page_tokens: int | None = None
    """Prompts that begin alike share what is read in pages of so many; None: nothing is shared."""

    def is_quick(self, request: Request) -> bool:
        """Raises InvalidRequest where that can't be said, because its messages are none."""
        check_messages(request.messages)
        return _size(request) <= self.quick_characters


@frozen
class Prompt:
    """A request that may be queued."""

    tokens: tuple[int, ...]
    sampling: Sampling
    priority: int
    named_max: bool
    writer: TextWriter
    prefix: tuple[bytes, ...] = ()
    """The names of the pages that it fills."""


def prepare(request: Request, language: Language, settings: RequestSettings) -> Prompt:
    """Check, render, tokenise.  Raises InvalidRequest and its kinds, naming the field at fault."""
    check_request(request, settings, names=language.names, vocab_size=language.tokenizer.vocab_size)
    text = language.template.render(request.messages, add_generation_prompt=True)
    _must_fit(len(text), language)
    tokens = tuple(language.tokenizer.encode(text, special=True))
    max_tokens = _answer_length(request, len(tokens), language.context, settings.default_max_tokens)
    writer = TextWriter(
        language.tokenizer.token_bytes,
        hidden=language.tokenizer.hidden_ids,
        stop=tuple(request.stop),
        min_tokens=request.min_tokens,
    )
    # Who names no priority is not refused for the default's sake.
    priority = min(0, settings.max_priority) if request.priority is None else request.priority
    shared = language.page_tokens if request.cache_prompt else None
    prefix = () if shared is None else chain(tokens, shared)
    return Prompt(tokens, _sampling(request, max_tokens), priority, request.max_tokens is not None, writer, prefix)


def _size(request: Request) -> int:
    """In characters, about; a template takes a while for an empty message too."""
    return sum(len(message.content) + MESSAGE_CHARACTERS for message in request.messages)


def _must_fit(characters: int, language: Language) -> None:
    """Refuse what no tokenizer could make fit: four megabytes would take it seconds.  Raises PromptTooLong."""
    if characters <= language.context:
        return
    tokens = characters // language.tokenizer.longest_token
    if tokens > language.context:
        text = (
            f"the prompt has {characters} characters, which make at least {tokens} tokens, and the model's context is "
            f"{language.context} tokens, prompt and answer together"
        )
        raise PromptTooLong(text, tokens=tokens, limit=language.context)


def _answer_length(request: Request, prompt: int, context: int, default: int) -> int:
    """max_tokens as asked for, else what there is.  Raises PromptTooLong naming both sizes."""
    if prompt >= context:
        text = (
            f"the prompt has {prompt} tokens, and the model's context is {context} tokens, prompt and answer together"
        )
        raise PromptTooLong(text, tokens=prompt, limit=context)
    asked = request.max_tokens
    if asked is None:
        return max(min(default, context - prompt), min(request.min_tokens, context - prompt))
    if prompt + asked > context:
        text = (
            f"the prompt has {prompt} tokens and max_tokens is {asked}: {prompt + asked} together, "
            f"and the model's context is {context} tokens"
        )
        raise PromptTooLong(text, tokens=prompt + asked, limit=context, param="max_tokens")
    return asked


def _sampling(request: Request, max_tokens: int) -> Sampling:
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=request.top_k or 0,
        min_p=request.min_p or 0.0,
        # Not named: another text each time.
        seed=random.getrandbits(63) if request.seed is None else request.seed,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple((token, value) for token, value in request.logit_bias),
        logprobs=request.logprobs,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        max_tokens=max_tokens,
    )
