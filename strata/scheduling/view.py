"""What the rules look at, and what they answer with.  Values; decides nothing.

Structs, as every decision makes several of them, and most decisions change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

import msgspec

from strata.config import SchedulerSettings
from strata.scheduling.purse import Purses
from strata.scheduling.record import Record
from strata.scheduling.rows import Rows
from strata.scheduling.waiting import Room, Waiting


class View(msgspec.Struct, frozen=True, gc=False):
    """All that the rules look at, as it stands."""

    now: float
    settings: SchedulerSettings
    rows: Rows
    waiting: Waiting
    purses: Purses
    room: Room
    aged: Mapping[int, float]
    """When one of this priority last started by its age (R5)."""
    swap_s: Callable[[Record], float]
    """How long it takes to bring back what it has in the arena."""
    at_chunk_end: bool
    """Whether the reader is known to stand at the end of a chunk, and to begin no other by itself."""

    def without(self, *gone: Record) -> View:
        """As if these were parked, as far as pages go."""
        room = self.room.without(*gone)
        return self if room is self.room else msgspec.structs.replace(self, room=room)

    def oldest(self, priority: int) -> Record | None:
        """Of one priority the oldest that reads, or waits and could run; with one row also the one that answers."""
        return oldest(priority, self.rows, self.waiting, self.room)


def oldest(priority: int, rows: Rows, waiting: Waiting, room: Room) -> Record | None:
    """`View.oldest`, for whoever has no view."""
    # One that would fit alone lacks no pages: those who run could be parked for it.
    found = waiting.oldest(priority, room.empty)
    for record in rows if rows.one else () if rows.reader is None else (rows.reader,):
        if record.priority == priority and (found is None or record.arrival_key < found.arrival_key):
            found = record
    return found


class Move(msgspec.Struct, frozen=True, gc=False):
    """One change to who runs."""

    starts: Record
    parks: Record | None
    reason: str
    past: int | None = None
    """The priority past which it aged, where that is the reason."""


class Due(msgspec.Struct, frozen=True, gc=False):
    """Who may take the place of another, and the time from which on (monotonic seconds)."""

    waits: Record
    at: float = -inf


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A move, and the time from which on it is to be made."""

    move: Move
    at: float
