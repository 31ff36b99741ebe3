"""Who is next, and who gives way to whom: R2 and R3, and R5 where it has its place.  Looks, and changes nothing.

Each rule of R3 is one function from who runs to who may take its place and from when on; their order is the table
RULES.  What a rule asks of time stands in that one number, so what holds now and what time alone will bring are read
from the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Final

from strata.config import Preempt
from strata.scheduling.aging import first_by_age, protected_until, rows_by_age
from strata.scheduling.record import Record
from strata.scheduling.view import Due, Move, Offer, View
from strata.scheduling.waiting import ANSWERS, EITHER, READS, Kinds


def next_move(view: View) -> tuple[Move | None, float]:
    """The next change to who runs; or None if all stays as it is, and until when it does as far as time goes.

    Whoever starts by it has yet to run a slice.
    """
    if (move := _into_free_row(view)) is not None:
        return move, -inf
    until = inf
    for offer in _displacements(view):
        if offer.at <= view.now:
            return offer.move, -inf
        until = min(until, offer.at)
    return None, min(until, _stops_at(view))


def reader_should_stop(view: View) -> bool:
    """Whether the reader would give way if it stood at the end of its chunk."""
    return any(offer.at <= view.now for offer in _at_chunk_end(view))


def changes_at(view: View) -> float:
    """When time alone will bring the next move, or make the reader stop at its chunk's end; inf if it will not."""
    if not view.waiting or view.settings.preempt is Preempt.OFF:
        return inf
    at = min((offer.at for offer in _displacements(view) if offer.at > view.now), default=inf)
    return min(at, _stops_at(view))


def _stops_at(view: View) -> float:
    """When time alone will make the reader stop at its chunk's end."""
    return min((offer.at for offer in _at_chunk_end(view) if offer.at > view.now), default=inf)


def lacks_only_pages(view: View) -> Record | None:
    """The first in rank of those queued, if it would run now but for its pages (R6)."""
    if not view.waiting.queued:
        return None
    first = view.waiting.first_head()
    in_the_way = view.rows.reader or (None if view.rows.free else view.rows.last)
    if in_the_way is not None:
        view = view.without(in_the_way)
        if first.priority <= in_the_way.priority or view.settings.preempt is Preempt.OFF:
            return None
    return None if view.room.admits(first) else first


# -- places ---------------------------------------------------------------------------------------------------------


def _into_free_row(view: View) -> Move | None:
    if not view.rows.free:
        return None
    kinds = EITHER if view.rows.reader is None else ANSWERS
    if (aged := first_by_age(view, kinds)) is not None:
        return aged
    for priority in view.waiting.priorities:
        if (found := _first(view, priority, kinds)) is not None:
            return Move(found[0], None, found[1])
    return None


def _displacements(view: View) -> Iterator[Offer]:
    """Those that could be made now, were it their time; the first whose time has come is made."""
    if view.settings.preempt is Preempt.OFF:
        return
    reader = view.rows.reader
    if reader is not None and reader.slices and (view.settings.preempt is Preempt.SLICE or view.at_chunk_end):
        yield from _take_place_of(reader, view, _readers_place(view))
    if not view.rows.free:
        yield from _take_row(view, EITHER if reader is None else ANSWERS)


def _take_row(view: View, kinds: Kinds) -> Iterator[Offer]:
    """Every row is taken: who takes that of one that answers."""
    # Before all that equals do: their turns would leave no quantum to age by.
    yield from rows_by_age(view, kinds, spared=_is_nearly_done)
    for last in _last_answers(view):
        if last.slices:
            yield from _take_place_of(last, view, kinds)
    if not view.rows.one:
        yield from _rotate(view, kinds)


def _last_answers(view: View) -> Iterator[Record]:
    """Those that answer, from the last in rank to the first that nothing protects."""
    for record in reversed(view.rows.answers):
        yield record
        if not record.is_protected(view.now):
            return


def _at_chunk_end(view: View) -> Iterator[Offer]:
    """What the reader gives way to at the end of its chunk, with `preempt = chunk`."""
    reader = view.rows.reader
    if reader is not None and view.settings.preempt is Preempt.CHUNK:
        yield from _take_place_of(reader, view, _readers_place(view))


def _readers_place(view: View) -> Kinds:
    # What answers wants a row and not the reader's place, unless they are the same.
    return EITHER if view.rows.one else READS


def _take_place_of(runs: Record, view: View, kinds: Kinds) -> Iterator[Offer]:
    view = view.without(runs)
    for reason, rule in RULES.items():
        if (due := rule(runs, view, kinds)) is not None:
            yield Offer(Move(due.waits, runs, reason), due.at)


def _rotate(view: View, kinds: Kinds) -> Iterator[Offer]:
    """R3.4 for several rows: who has waited longest, in the place of who has answered longest."""
    for priority in view.waiting.priorities:
        answers = [r for r in view.rows.answers if r.priority == priority]
        for runs in _longest_first(answers, view):
            waits = _next_in_turn(priority, view.without(runs), kinds)
            # The oldest keeps its row: so each ends at last, however many come after it.
            if waits is not None and not (runs is answers[0] and runs.rank < waits.rank):
                yield Offer(Move(waits, runs, "turn"), _turn_at(waits, runs, view))
                break


def _longest_first(answers: list[Record], view: View) -> list[Record]:
    """Those that may have to give up their rows; who has had it the longest first."""
    found = (r for r in answers if r.slices and not _is_spared(r, view))
    return sorted(found, key=lambda r: (r.runs_since, r.seq))


# -- R2: who is first -----------------------------------------------------------------------------------------------


def _first(view: View, priority: int, kinds: Kinds) -> tuple[Record, str] | None:
    """Of one priority the oldest that could run, or a shorter one that may pass it; and why that one."""
    oldest = view.waiting.oldest(priority, view.room, kinds)
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


def _level(runs: Record, view: View, kinds: Kinds) -> Due | None:
    """R3.1: one of a higher priority."""
    for priority in view.waiting.priorities:
        if priority <= runs.priority:
            break
        if (found := _first(view, priority, kinds)) is not None:
            return Due(found[0], protected_until(runs, found[0], view))
    return None


def _short(runs: Record, view: View, kinds: Kinds) -> Due | None:
    """R3.2: the shortest equal, while the purse lasts."""
    if not kinds.reads or _is_spared(runs, view):
        return None
    shorter = _shorter(runs, view)
    return None if shorter is None else Due(shorter, protected_until(runs, shorter, view))


def _purse(runs: Record, view: View, kinds: Kinds) -> Due | None:
    """R3.3: the oldest, once it was passed for long enough."""
    if not view.purses.is_spent(runs.priority) or _is_spared(runs, view):
        return None
    oldest = view.oldest(runs.priority)
    if oldest is None or oldest not in view.waiting or not view.room.admits(oldest):
        return None
    fits = kinds.reads if oldest.reads else kinds.answers
    return Due(oldest) if fits and oldest.rank < runs.rank else None


def _turn(runs: Record, view: View, kinds: Kinds) -> Due | None:
    """R3.4: the oldest after a while; if that is the one that runs, who has waited longest, while the purse lasts."""
    if not (runs.reads or view.rows.one) or _is_spared(runs, view):
        return None
    waits = view.waiting.oldest(runs.priority, view.room, kinds)
    if waits is not None and waits.rank > runs.rank:
        may_pass = view.purses.may_pass(runs.priority)
        waits = _next_in_turn(runs.priority, view, kinds) if may_pass else None
    return None if waits is None else Due(waits, _turn_at(waits, runs, view))


RULES: Final[Mapping[str, Callable[[Record, View, Kinds], Due | None]]] = {
    "level": _level,
    "short": _short,
    "purse": _purse,
    "turn": _turn,
}
"""By the reason that is recorded.  The first that names somebody whose time has come decides."""


def _turn_at(waits: Record, runs: Record, view: View) -> float:
    settings = view.settings
    # A turn that must bring pages back is long beside that.
    quantum_s = max(settings.quantum_s, settings.swap_ratio * view.swap_s(waits))
    return max(runs.runs_since + quantum_s, waits.waits_since + settings.turn_wait_s)


def _next_in_turn(priority: int, view: View, kinds: Kinds) -> Record | None:
    """Who has waited longest; of those queued only while not too many prompts are half read (`open_reads`)."""
    reader = view.rows.reader
    half_read = view.waiting.half_read(priority) + (reader is not None and reader.priority == priority)
    return view.waiting.longest(priority, view.room, kinds, queued=half_read < view.settings.open_reads)


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
        is_shorter = 2 * shortest.need <= than.need
    else:
        is_shorter = shortest.is_short(view.settings) and not than.is_short(view.settings)
    return shortest if is_shorter and _leaves_pages(shortest, than, view) else None


def _leaves_pages(shortest: Record, than: Record, view: View) -> bool:
    """Whether the oldest that could run, if it is none younger than the one that is passed, still could.

    Who can't run for want of pages isn't waited for, so whoever took them would pass it without paying.
    """
    oldest = view.waiting.oldest(than.priority, view.room, READS)
    return oldest is None or oldest.rank > than.rank or view.room.admits_after(oldest, shortest)


def _is_spared(runs: Record, view: View) -> bool:
    """Whether it need not give way to an equal."""
    settings = view.settings
    if _is_nearly_done(runs, view) or runs.stands_at < settings.min_park_tokens:
        return True
    return bool(settings.max_parks) and runs.parks_by_equals >= settings.max_parks


def _is_nearly_done(record: Record, view: View) -> bool:
    """Less than two slices to read, or `finish_tokens` to write."""
    if not record.reads:
        return record.left_to_write(record.max_tokens) <= view.settings.finish_tokens
    if not record.in_last_chunk:
        return False
    # Known of all that ran a slice: its chunk's heartbeat says it, or the chunk before shows it.
    left = record.slices_left
    return left is not None and left < 2
