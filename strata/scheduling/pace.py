"""How fast the engine is, from what it said so far.  Knows seconds and tokens; no request and no rule."""

from __future__ import annotations

from typing import Final

from attrs import define

SHORTEST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 120.0
"""A guess from a queue that is full says little about later than this."""


@define
class Pace:
    longest_chunk_s: float = 0.0
    longest_step_s: float = 0.0
    engine_s: float = 0.0
    pages_out: int = 0
    pages_in: int = 0
    moves_s: float = 0.0
    read_tokens: int = 0
    cached_tokens: int = 0
    """Not read again."""
    written_tokens: int = 0

    def read_for(self, seconds: float, *, chunk_s: float) -> None:
        """A slice took `seconds`; its chunk has taken `chunk_s` so far."""
        self.engine_s += seconds
        self.longest_chunk_s = max(self.longest_chunk_s, chunk_s)

    def stepped(self, seconds: float) -> None:
        self.engine_s += seconds
        self.longest_step_s = max(self.longest_step_s, seconds)

    @property
    def move_s(self) -> float:
        """To move one page."""
        return self.moves_s / max(1, self.pages_out + self.pages_in)

    def overrun_s(self, finish_tokens: int) -> float:
        """The longest that a read or an answer near its end goes on though it should give way."""
        return self.longest_chunk_s + finish_tokens * self.longest_step_s

    def retry_after_s(self, tokens: int) -> float:
        """When so many queued tokens will have been read, at the rate of all work so far."""
        if not self.read_tokens:
            return SHORTEST_RETRY_S
        return min(LONGEST_RETRY_S, max(SHORTEST_RETRY_S, tokens * self.engine_s / self.read_tokens))
