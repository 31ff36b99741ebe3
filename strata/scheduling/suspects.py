"""Those whose work an engine may have died of, until each has got past the point (R10).

A room of its own because it is all that is remembered of a death.  Knows who ran and where they stood; no queue and no
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strata.messages import Seq
from strata.scheduling.record import Record
from strata.scheduling.steps import Steps

Point = tuple[int, int]
"""Tokens of the answer, and of the prompt."""


class Suspects:
    """They run one at a time and nobody beside them, so that another death has one cause."""

    def __init__(self) -> None:
        self._points: dict[Seq, tuple[Record, Point]] = {}

    def __bool__(self) -> bool:
        return bool(self._points)

    def __repr__(self) -> str:
        return f"<Suspects {sorted(self._points)}>"

    def add(self, record: Record) -> None:
        """Before its position is forgotten.  Where it dies twice, the later point counts."""
        _, before = self._points.get(record.seq, (record, (0, 0)))
        self._points[record.seq] = record, max(before, (record.written, record.position))

    def clear_if_past(self, record: Record) -> None:
        """It has done more than when the engine died."""
        if record.seq in self._points and (record.written, record.position) > self._points[record.seq][1]:
            del self._points[record.seq]

    def are_in(self, rows: Iterable[Record]) -> bool:
        """Whether one of them runs."""
        return bool(self._points) and any(record.seq in self._points for record in rows)

    def next(self, fits: Callable[[Record], bool]) -> Record | None:
        """The first in rank that fits; who does not must wait for pages with all others."""
        fitting = (record for record, _ in self._points.values() if fits(record))
        return min(fitting, key=lambda record: record.rank, default=None)

    def discard(self, record: Record) -> None:
        self._points.pop(record.seq, None)


def who_ran(started: Mapping[Seq, Record], steps: Steps, n: int | None, *, workspaces: int) -> frozenset[Seq]:
    """Whose work an engine may have died of, with step `n` in force (None: it could not say).

    The step's; those that came to it last; and a chunk that it had to finish because the step's reader had no room for
    its own.
    """
    named = steps.named(n)
    just_opened = (seq for seq, record in started.items() if not steps.has_begun(record.placed))
    half_read = frozenset(seq for seq, record in started.items() if record.reads and record.done)
    no_room = len(half_read) >= workspaces and not named & half_read
    return named.union(just_opened, half_read if no_room else ())
