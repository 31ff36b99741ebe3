"""From a request to what the engine can read: checked, rendered, tokenised.  Pure; runs off the event loop.

Knows the model's sizes, vocabulary and template; no actor, no queue, no engine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Final, Protocol, TypeGuard

from attrs import frozen

from strata.actors.text import TextWriter
from strata.config import RequestSettings
from strata.errors import InvalidRequest, ModelNotFound, PromptTooLong
from strata.messages import ChatMessage, Request, Sampling

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 4096
"""Of one stop string: each is looked at again for every character of the answer."""
MAX_LOGPROBS: Final = 20
HIGHEST_PRIORITY: Final = 100
LARGEST_SEED: Final = 2**63
MAX_LOGIT_BIAS: Final = 100.0
MESSAGE_CHARACTERS: Final = 50
LARGEST: Final = sys.float_info.max


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

    def is_quick(self, request: Request) -> bool:
        return _size(request) <= self.quick_characters


@frozen
class Prompt:
    """A request that may be queued."""

    tokens: tuple[int, ...]
    sampling: Sampling
    priority: int
    named_max: bool
    writer: TextWriter


def prepare(request: Request, language: Language, settings: RequestSettings) -> Prompt:
    """Check, render, tokenise.  Raises InvalidRequest and its kinds, naming the field at fault."""
    _check(request, language, settings)
    text = language.template.render(request.messages, add_generation_prompt=True)
    _must_fit(len(text), language)
    tokens = tuple(language.tokenizer.encode(text, special=True))
    max_tokens = _answer_length(request, len(tokens), language.context, settings.default_max_tokens)
    writer = TextWriter(
        language.tokenizer.token_bytes,
        hidden=language.tokenizer.hidden_ids,
        stop=request.stop,
        min_tokens=request.min_tokens,
    )
    return Prompt(tokens, _sampling(request, max_tokens), request.priority, request.max_tokens is not None, writer)


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
        logit_bias=request.logit_bias,
        logprobs=request.logprobs,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        max_tokens=max_tokens,
    )


# -- what may be asked for ----------------------------------------------------------------------------------------


def _check(request: Request, language: Language, settings: RequestSettings) -> None:
    if request.model not in language.names:
        raise ModelNotFound(request.model)
    if not request.messages:
        raise InvalidRequest("there must be at least one message", param="messages")
    _check_priority(request.priority, settings.max_priority)
    _check_stop(request.stop)
    _check_numbers(request)
    _check_lengths(request)
    _check_bias(request.logit_bias, language.tokenizer.vocab_size)


def _check_priority(priority: int, highest: int) -> None:
    _within("priority", priority, -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
    if priority > highest:
        raise InvalidRequest(f"priority {priority} is higher than this server allows ({highest})", param="priority")


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOPS:
        raise InvalidRequest(f"there are {len(stop)} stop strings; at most {MAX_STOPS} may be", param="stop")
    if not all(stop):
        raise InvalidRequest("a stop string can't be empty", param="stop")
    if any(len(string) > MAX_STOP_CHARACTERS for string in stop):
        raise InvalidRequest(f"a stop string has at most {MAX_STOP_CHARACTERS} characters", param="stop")


def _check_numbers(request: Request) -> None:
    _within("temperature", request.temperature, 0, LARGEST)
    _within("top_p", request.top_p, 0, 1, open_low=True)
    _within("top_k", request.top_k, 0, LARGEST)
    _within("min_p", request.min_p, 0, 1)
    _within("seed", request.seed, -LARGEST_SEED, LARGEST_SEED - 1)
    _within("frequency_penalty", request.frequency_penalty, -2, 2)
    _within("presence_penalty", request.presence_penalty, -2, 2)
    _within("repetition_penalty", request.repetition_penalty, 0, LARGEST, open_low=True)
    _within("logprobs", request.logprobs, 0, MAX_LOGPROBS)


def _check_lengths(request: Request) -> None:
    _within("max_tokens", request.max_tokens, 1, LARGEST)
    _within("min_tokens", request.min_tokens, 0, LARGEST)
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        text = f"min_tokens {request.min_tokens} is more than max_tokens {request.max_tokens}"
        raise InvalidRequest(text, param="min_tokens")


def _check_bias(bias: tuple[tuple[int, float], ...], vocab_size: int) -> None:
    for token, value in bias:
        if not 0 <= token < vocab_size:
            text = f"there is no token {token}; the vocabulary has {vocab_size}"
            raise InvalidRequest(text, param="logit_bias")
        _within("logit_bias", value, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


def _within(field: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    """None, or a finite number between the two; `open_low` leaves the lower end itself out."""
    if value is None:
        return
    if not _is_number(value) or not low <= value <= high or (open_low and value == low):
        span = f"{'more than' if open_low else 'at least'} {low:g}"
        if high < LARGEST:
            span += f" and at most {high:g}"
        raise InvalidRequest(f"{field} {value!r} must be a finite number, {span}", param=field)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
