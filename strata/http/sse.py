"""The bytes of a streamed answer: events and comments.  Knows neither who sends them nor when.

What stays the same in every event of one answer is encoded once; of an ordinary delta only the text is encoded anew.
"""

from __future__ import annotations

from typing import Final

import msgspec

from strata.http.answer import (
    CHUNK_OBJECT,
    Chunk,
    Piece,
    PieceChoice,
    PromptProgress,
    Timings,
    Usage,
    logprobs_of,
    timings_of,
    usage_of,
)
from strata.messages import Delta, Figures, Summary

END: Final = "[DONE]"
"""The data of the last event, where all went well."""
DONE: Final = f"data: {END}\n\n".encode()

_encoder: Final = msgspec.json.Encoder()


class Events:
    """The events of one answer, as `data: ...` lines."""

    def __init__(self, *, id: str, created: int, model: str, include_usage: bool) -> None:
        self._id, self._created, self._model = id, created, model
        self._include_usage = include_usage
        empty = self._encode(Chunk(id=id, object=CHUNK_OBJECT, created=created, model=model, choices=[]))
        # Ends with `"choices":[]}`, and everything before the bracket's end is the same in each event.
        self._head = b"data: " + empty.removesuffix(b"]}") + b'{"index":0,"delta":{"content":'
        # With usage asked for, each chunk but the last has it as null.
        self._null = b',"usage":null' if include_usage else b""
        self._tail = b'},"logprobs":null,"finish_reason":null}]' + self._null + b"}\n\n"

    def first(self) -> bytes:
        """The role, and an empty content."""
        return self._event(PieceChoice(delta=Piece(role="assistant", content="")))

    def delta(self, delta: Delta) -> bytes:
        if delta.logprobs:
            piece = PieceChoice(delta=Piece(content=delta.text), logprobs=logprobs_of(delta.logprobs))
            return self._event(piece)
        return self._head + _encoder.encode(delta.text) + self._tail

    def last(self, summary: Summary) -> bytes:
        """The finish reason, the usage where asked for, and the end."""
        finish = PieceChoice(delta=Piece(), finish_reason=summary.finish_reason)
        timings = timings_of(summary.figures)
        if not self._include_usage:
            return self._line(self._chunk([finish], timings=timings)) + DONE
        usage = self._chunk([], usage=usage_of(summary.figures), timings=timings)
        return self._event(finish) + self._line(usage) + DONE

    def progress(self, figures: Figures) -> bytes:
        """How far the prompt has come, as an event."""
        return self._nulled(self._chunk([], prompt_progress=progress_of(figures)))

    def _event(self, choice: PieceChoice) -> bytes:
        return self._nulled(self._chunk([choice]))

    def _chunk(
        self,
        choices: list[PieceChoice],
        *,
        usage: Usage | None = None,
        timings: Timings | None = None,
        prompt_progress: PromptProgress | None = None,
    ) -> Chunk:
        return Chunk(
            id=self._id,
            object=CHUNK_OBJECT,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            timings=timings,
            prompt_progress=prompt_progress,
        )

    def _nulled(self, chunk: Chunk) -> bytes:
        return b"data: " + self._encode(chunk)[:-1] + self._null + b"}\n\n"

    def _line(self, chunk: Chunk) -> bytes:
        return b"data: " + self._encode(chunk) + b"\n\n"

    @staticmethod
    def _encode(chunk: Chunk) -> bytes:
        return _encoder.encode(chunk)


def error_event(encoded: bytes) -> bytes:
    """An error after the start.  Nothing comes after it, not even `[DONE]`."""
    return b"data: " + encoded + b"\n\n"


def comment(figures: Figures) -> bytes:
    """Where a request stands, as a line that clients pass over: `: queued 3`, `: reading 2048/8192`, `: parked`."""
    return b": " + _standing(figures).encode() + b"\n\n"


def progress_of(figures: Figures) -> PromptProgress:
    return PromptProgress(
        state=figures.state,
        ahead=figures.ahead,
        total=figures.prompt_tokens,
        cache=figures.cached_tokens,
        processed=figures.read_tokens,
    )


def _standing(figures: Figures) -> str:
    match figures.state.partition(" ")[0]:
        case "queued":
            return f"queued {figures.ahead}"
        case "reading":
            return f"reading {figures.read_tokens}/{figures.prompt_tokens}"
        case "decoding":
            return f"decoding {figures.written_tokens}"
        case state:
            return state
