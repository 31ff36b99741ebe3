"""How long an engine may say nothing before it counts as hung.  Knows no clock, no process and no thread.

A room of its own because it must never be wrong about a slow engine (behaviours B34): what is long is measured against
what that same engine has needed for one slice or step so far, with a wide margin.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

MARGIN: Final = 20.0
"""So many times the longest slice or step seen: one that meets a cold disk or a busy machine is no hang."""
LOOKS: Final = 10
"""Silence is measured in so many parts, so that a looker that was itself held up counts one part of it at most."""


@define
class Watchdog:
    """One engine's.  Whoever keeps it looks every `look_s`, and asks the engine for a word each time it was silent."""

    floor_s: float
    """Never less than this is too long (seconds)."""
    _longest_s: float = field(default=0.0, init=False)
    _silent_s: float = field(default=0.0, init=False)

    @property
    def allowed_s(self) -> float:
        """So long it may be silent (seconds); two looks more may pass before that is seen."""
        return max(self.floor_s, MARGIN * self._longest_s)

    @property
    def look_s(self) -> float:
        return self.allowed_s / LOOKS

    @property
    def verdict(self) -> str:
        return f"no progress for {self.allowed_s:.3g} s"

    def heard(self, seconds: float = 0.0) -> None:
        """It said something; if that was a slice or a step, it took so many seconds."""
        self._silent_s = 0.0
        self._longest_s = max(self._longest_s, seconds)

    def look(self) -> bool:
        """Call it `look_s` after the last time.  True: it was silent for too long."""
        self._silent_s += self.look_s
        # Of the first part it may have said something at the end.  And tenths don't add up to the bit.
        return self._silent_s > self.allowed_s * 1.001
