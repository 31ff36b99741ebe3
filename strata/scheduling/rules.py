"""Who is next, and who gives way to whom: R2 and R3.  Looks, and changes nothing.

Each rule of R3 is one function from who runs to who may take its place; their order is the table RULES.  Rules that
ask for the time (turns, aging) have their place there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from strata.config import Preempt, SchedulerSettings
from strata.scheduling.purse import Purses
from strata.scheduling.record import Record
from strata.scheduling.rows import Rows
from strata.scheduling.waiting import Room, Waiting


@frozen
class View:
    """All that the rules look at, as it stands."""

    settings: SchedulerSettings
    rows: Rows
    waiting: Waiting
    purses: Purses
    room: Room
    at_chunk_end: bool
    """Whether the reader is known to stand at the end of a chunk, and to begin no other by itself."""

    def oldest(self, priority: int) -> Record | None:
        """Of one priority the oldest that reads, or waits and could run; with one row also the one that answers."""
        found = [r for r in self.rows if r.priority == priority and (self.rows.one or r is self.rows.reader)]
        waits = self.waiting.oldest(priority, self.room)
        if waits is not None:
            found.append(waits)
        return min(found, key=lambda r: r.arrival_key, default=None)


@frozen
class Kinds:
    """Who could use the place: one that has to read, one that answers."""

    reads: bool
    answers: bool


@frozen
class Move:
    """One change to who runs."""

    starts: Record
    parks: Record | None
    reason: str


def next_move(view: View) -> Move | None:
    """The next change to who runs, or None if all stays as it is.  Whoever starts by it has yet to run a slice."""
    move = _into_free_row(view)
    if move is None and view.settings.preempt is not Preempt.OFF:
        move = _into_readers_place(view) or _into_answers_place(view)
    return move


def reader_should_stop(view: View) -> bool:
    """Whether the reader would give way if it stood at the end of its chunk."""
    reader = view.rows.reader
    if reader is None or view.settings.preempt is not Preempt.CHUNK:
        return False
    return _takes_place_of(reader, view, Kinds(reads=True, answers=view.rows.one)) is not None


def lacks_only_pages(view: View) -> Record | None:
    """The first in rank of those queued, if it would run now but for its pages (R6)."""
    heads = (view.waiting.head(priority) for priority in view.waiting.priorities)
    first = next((head for head in heads if head is not None), None)
    if first is None or first.worst <= view.room.pages:
        return None
    in_the_way = view.rows.reader or (None if view.rows.free else view.rows.last)
    if in_the_way is None:
        return first
    outranks = first.priority > in_the_way.priority and view.settings.preempt is not Preempt.OFF
    return first if outranks else None


# -- places ---------------------------------------------------------------------------------------------------------


def _into_free_row(view: View) -> Move | None:
    if not view.rows.free:
        return None
    kinds = Kinds(reads=view.rows.reader is None, answers=True)
    for priority in view.waiting.priorities:
        if (found := _first(view, priority, kinds)) is not None:
            return Move(found[0], None, found[1])
    return None


def _into_readers_place(view: View) -> Move | None:
    reader = view.rows.reader
    if reader is None or not reader.slices:
        return None
    if view.settings.preempt is Preempt.CHUNK and not view.at_chunk_end:
        return None
    # What answers wants a row and not the reader's place, unless they are the same.
    return _takes_place_of(reader, view, Kinds(reads=True, answers=view.rows.one))


def _into_answers_place(view: View) -> Move | None:
    last = view.rows.last
    if last is None or view.rows.free or not last.slices:
        return None
    return _takes_place_of(last, view, Kinds(reads=view.rows.reader is None, answers=True))


def _takes_place_of(runs: Record, view: View, kinds: Kinds) -> Move | None:
    for reason, rule in RULES.items():
        waits = rule(runs, view, kinds)
        if waits is not None:
            return Move(waits, runs, reason)
    return None


# -- R2: who is first -----------------------------------------------------------------------------------------------


def _first(view: View, priority: int, kinds: Kinds) -> tuple[Record, str] | None:
    """Of one priority the oldest that could run, or a shorter one that may pass it; and why that one."""
    oldest = view.waiting.oldest(priority, view.room, reads=kinds.reads, answers=kinds.answers)
    if oldest is None:
        return None
    if kinds.reads and (shorter := _passes(oldest, view)) is not None:
        return shorter, "short"
    return oldest, "rank"


def _passes(oldest: Record, view: View) -> Record | None:
    """The one that would take the oldest's place at once, were it to run first."""
    # With several rows what answers is no hindrance to a read: it gets its row first.
    if not (oldest.reads or view.rows.one) or _is_nearly_done(oldest, view):
        return None
    return _shorter(oldest, view)


# -- R3: who gives way ----------------------------------------------------------------------------------------------


def _level(runs: Record, view: View, kinds: Kinds) -> Record | None:
    """R3.1: one of a higher priority."""
    for priority in view.waiting.priorities:
        if priority <= runs.priority:
            break
        if (found := _first(view, priority, kinds)) is not None:
            return found[0]
    return None


def _short(runs: Record, view: View, kinds: Kinds) -> Record | None:
    """R3.2: the shortest equal, while the purse lasts."""
    if not kinds.reads or _is_spared(runs, view):
        return None
    return _shorter(runs, view)


def _purse(runs: Record, view: View, kinds: Kinds) -> Record | None:
    """R3.3: the oldest, once it was passed for long enough."""
    if not view.purses.is_spent(runs.priority) or _is_spared(runs, view):
        return None
    oldest = view.oldest(runs.priority)
    if oldest is None or oldest not in view.waiting:
        return None
    fits = kinds.reads if oldest.reads else kinds.answers
    return oldest if fits and oldest.rank < runs.rank else None


RULES: Final[Mapping[str, Callable[[Record, View, Kinds], Record | None]]] = {
    "level": _level,
    "short": _short,
    "purse": _purse,
}
"""By the reason that is recorded.  The first that names somebody decides."""


def _shorter(than: Record, view: View) -> Record | None:
    """The shortest read of its priority, if it is shorter by far and the purse lasts.

    A parked answer has nothing to read and never passes by that.  An answer that is short itself isn't passed: equals
    of like length are served in order.
    """
    if view.settings.preempt is Preempt.OFF or not view.purses.may_pass(than.priority):
        return None
    shortest = view.waiting.shortest(than.priority, view.room)
    if shortest is None or shortest is than:
        return None
    if than.reads:
        return shortest if 2 * shortest.need <= than.need else None
    return shortest if shortest.is_short(view.settings) and not than.is_short(view.settings) else None


def _is_spared(runs: Record, view: View) -> bool:
    """Whether it need not give way to an equal."""
    settings = view.settings
    if _is_nearly_done(runs, view) or runs.stands_at < settings.min_park_tokens:
        return True
    return bool(settings.max_parks) and runs.parks_by_equals >= settings.max_parks


def _is_nearly_done(record: Record, view: View) -> bool:
    """Less than two slices to read, or `finish_tokens` to write."""
    if not record.reads:
        return record.max_tokens - record.written <= view.settings.finish_tokens
    # Known of all that ran a slice: its chunk's heartbeat says it, or the chunk before shows it.
    left = record.slices_left
    return record.in_last_chunk and left is not None and left < 2
