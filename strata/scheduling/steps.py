"""Which step message the engine follows.  Knows what was sent and what was taken up; not why.

A step that says what the newest one said is not sent again.  Facts come in order: what follows `Took(n)` happened
under step n or a newer one.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs
from attrs import define, frozen

from strata.messages import Seq, Step

Says: TypeAlias = tuple[tuple[Seq, ...], Seq | None, int | None, float, float]
"""All that a step says but its number: `decode`, `read`, `read_until`, `read_share`, `gap_s`.  A plain tuple, since
every decision makes one and few of them are sent."""


@frozen
class _Sent:
    step: Step
    at: float
    parks: bool


@define
class GiveWay:
    """How long it took from a step that parks somebody to its being in force (seconds)."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)


class Steps:
    def __init__(self, *, read_share: float) -> None:
        self._nothing = Step(0, read_share=read_share)
        self.newest = self._nothing
        self._said: Says = _says(self.newest)
        self.in_force = self.newest
        self.give_way = GiveWay()
        self._on_its_way: dict[int, _Sent] = {}

    def __repr__(self) -> str:
        return f"<Steps {self.in_force.n} of {self.newest.n} in force>"

    @property
    def next_n(self) -> int:
        """The number that the next step will have."""
        return self.newest.n + 1

    def has_begun(self, n: int) -> bool:
        """Whether step n, or a newer one, is in force."""
        return self.in_force.n >= n

    def say(self, says: Says, *, parks: bool, now: float) -> Step | None:
        """The step, numbered, if it differs from the newest."""
        if says == self._said:
            return None
        self.newest, self._said = Step(self.newest.n + 1, *says), says
        self._on_its_way[self.newest.n] = _Sent(self.newest, now, parks)
        return self.newest

    def took(self, n: int, now: float) -> None:
        if (sent := self._on_its_way.get(n)) is None:
            return
        self.in_force = sent.step
        for older in [m for m in self._on_its_way if m <= n]:
            past = self._on_its_way.pop(older)
            if past.parks:
                self.give_way.add(now - past.at)

    def stops_at(self, seq: Seq, position: int) -> bool:
        """Whether the step in force lets this one begin no chunk from here on."""
        until = self.in_force.read_until
        return self.in_force.read == seq and until is not None and until <= position

    def will_end(self, seq: Seq) -> int | None:
        """Where this one's read will end by a step that the engine has not taken yet."""
        return self.newest.read_until if self._on_its_way and self.newest.read == seq else None

    def named(self, n: int | None) -> frozenset[Seq]:
        """Whom step n lets run; None, or one that is not known any more: the step in force."""
        sent = None if n is None else self._on_its_way.get(n)
        step = self.in_force if sent is None else sent.step
        return frozenset(step.decode if step.read is None else (*step.decode, step.read))

    def forget(self) -> None:
        """The engine is gone, and what it was told.  Numbers go on."""
        self.newest = self.in_force = attrs.evolve(self._nothing, n=self.newest.n)
        self._said = _says(self.newest)
        self._on_its_way.clear()


def members(step: Step) -> set[Seq]:
    """Those that it lets run."""
    return {*step.decode, *(() if step.read is None else (step.read,))}


def _says(step: Step) -> Says:
    return (step.decode, step.read, step.read_until, step.read_share, step.gap_s)
