"""What a client gets, as types: chat answers, their chunks, usage, timings.  Knows shapes, not when they are sent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from strata.messages import Figures, TextLogprob

LOWEST_LOGPROB: Final = -9999.0
"""Stands for minus infinity, which JSON doesn't have; the value that OpenAI's API uses."""

Finish = Literal["stop", "length"]


class CachedTokens(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True):
    """Counted in tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Timings(Struct, frozen=True):
    """What the answer took, in seconds; parks by reason."""

    queue_s: float
    read_s: float
    parked_s: float
    decode_s: float
    engine_s: float
    ttft_s: float | None
    longest_gap_s: float
    total_s: float
    parks: dict[str, int]
    resumes: int


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(Struct, frozen=True):
    content: list[Logprob]
    refusal: None = None


class AnswerMessage(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(Struct, frozen=True, kw_only=True):
    index: int = 0
    message: AnswerMessage
    logprobs: Logprobs | None = None
    finish_reason: Finish


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """The body of an answer that isn't streamed."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    timings: Timings
    system_fingerprint: None = None
    service_tier: None = None


class Piece(Struct, frozen=True, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None


class PieceChoice(Struct, frozen=True, kw_only=True):
    index: int = 0
    delta: Piece
    logprobs: Logprobs | None = None
    finish_reason: Finish | None = None


class PromptProgress(Struct, frozen=True, kw_only=True):
    """How far a prompt has come; tokens."""

    state: str
    ahead: int
    """Requests that are served before this one, while it is queued."""
    total: int
    cache: int
    processed: int


class Chunk(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event of a streamed answer."""

    id: str
    object: str
    created: int
    model: str
    choices: list[PieceChoice]
    usage: Usage | None = None
    """In the last chunk, where asked for."""
    timings: Timings | None = None
    """In the last chunk."""
    prompt_progress: PromptProgress | None = None
    """Where asked for, while the prompt waits and is read."""


CHUNK_OBJECT: Final = "chat.completion.chunk"


def usage_of(figures: Figures) -> Usage:
    return Usage(
        prompt_tokens=figures.prompt_tokens,
        completion_tokens=figures.written_tokens,
        total_tokens=figures.prompt_tokens + figures.written_tokens,
        prompt_tokens_details=CachedTokens(figures.cached_tokens),
    )


def timings_of(figures: Figures) -> Timings:
    return Timings(
        queue_s=round(figures.queue_s, 6),
        read_s=round(figures.read_s, 6),
        parked_s=round(figures.parked_s, 6),
        decode_s=round(figures.decode_s, 6),
        engine_s=round(figures.engine_s, 6),
        ttft_s=None if figures.ttft_s is None else round(figures.ttft_s, 6),
        longest_gap_s=round(figures.longest_gap_s, 6),
        total_s=round(figures.total_s, 6),
        parks=dict(figures.parks),
        resumes=figures.resumes,
    )


def logprobs_of(tokens: Iterable[TextLogprob]) -> Logprobs:
    return Logprobs([_logprob(token) for token in tokens])


def _logprob(token: TextLogprob) -> Logprob:
    top = [TopLogprob(other.text, _finite(other.logprob), list(other.bytes)) for other in token.top]
    return Logprob(token.text, _finite(token.logprob), list(token.bytes), top)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
