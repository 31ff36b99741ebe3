"""What passing costs (R2): engine seconds that shorter ones may run ahead of the oldest of their priority.

Knows priorities and seconds; not who runs.  Time in which nobody runs is never told to it, so idling earns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class Purses:
    """One for each priority, full at first.

    Each second of the oldest earns (1 - share) / share, each second of another while the oldest waits costs one.  At
    `-burst` the oldest gets the engine back; what may still run over is one chunk and `finish` tokens, so no purse
    goes below `floor`.
    """

    def __init__(self, *, share: float, burst_s: float) -> None:
        self._wage = (1 - share) / share
        self._burst_s = burst_s
        self._purses: dict[int, float] = {}

    def __getitem__(self, priority: int) -> float:
        return self._purses.get(priority, self._burst_s)

    def __repr__(self) -> str:
        return f"<Purses {self._purses}>"

    @property
    def all(self) -> Mapping[int, float]:
        """Those that were ever opened (seconds)."""
        return MappingProxyType(self._purses)

    def may_pass(self, priority: int) -> bool:
        return self[priority] > 0

    def is_spent(self, priority: int) -> bool:
        """Whether the oldest has been passed for long enough."""
        return self[priority] <= -self._burst_s

    def earn(self, priority: int, seconds: float) -> None:
        """The oldest ran."""
        self._purses[priority] = min(self._burst_s, self[priority] + seconds * self._wage)

    def spend(self, priority: int, seconds: float, *, overrun_s: float) -> None:
        """Another ran while the oldest waited.

        `overrun_s` is the longest that may still run once the purse is spent.  Only an oldest that nobody may make
        room for (`preempt = off`, a gate) is passed for longer, and that debt is not kept.
        """
        floor = -self._burst_s - overrun_s
        self._purses[priority] = max(floor, self[priority] - seconds)
