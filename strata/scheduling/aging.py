"""Aging between priorities (R5).  Looks, and changes nothing; knows nothing of what equals do to each other.

Age is no priority: it brings one start, protected for a quantum, and the next of its priority waits as long again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from strata.scheduling.record import Record
from strata.scheduling.view import Move, Offer, View
from strata.scheduling.waiting import Kinds


def first_by_age(view: View, kinds: Kinds) -> Move | None:
    """Who goes before all of higher priorities into a place that is free."""
    longest = _longest(view, kinds) if len(view.waiting.priorities) > 1 else []
    if len(longest) < 2:
        return None
    top = longest[0].priority
    waits = min(longest[1:], key=lambda record: _aged_at(record, top, view))
    return Move(waits, None, "aged", past=top) if _aged_at(waits, top, view) <= view.now else None


def rows_by_age(view: View, kinds: Kinds, *, spared: Callable[[Record, View], bool]) -> Iterator[Offer]:
    """Who takes the row of an answer of a higher priority, once that had its quantum."""
    if view.rows.last is None or not view.waiting:
        return
    lowest = view.rows.last.priority
    if view.waiting.priorities[-1] >= lowest:
        return
    answers = [r for r in view.rows.answers if r.priority == lowest and r.slices and not spared(r, view)]
    if not answers:
        return
    runs = min(answers, key=lambda record: (record.runs_since, record.seq))
    longest = _longest(view.without(runs), kinds)
    below = [record for record in longest if record.priority < lowest]
    if not below:
        return
    top = max(lowest, longest[0].priority)
    waits = min(below, key=lambda record: _aged_at(record, top, view))
    at = max(_aged_at(waits, top, view), runs.runs_since + view.settings.quantum_s)
    yield Offer(Move(waits, runs, "aged", past=top), at)


def protected_until(runs: Record, waits: Record, view: View) -> float:
    """From when on it may be displaced by this one; -inf if nothing protects it.

    Those that it aged past, and its equals, wait for the end of its quantum.  One above all that may be pressing: it
    waits `turn_wait_s` at most.
    """
    protection = runs.protection
    if protection is None:
        return -inf
    if waits.priority > protection.past:
        return min(protection.until, waits.waits_since + view.settings.turn_wait_s)
    return protection.until


def _longest(view: View, kinds: Kinds) -> list[Record]:
    """Of each priority who has waited longest and could run, the highest priority first."""
    found = (view.waiting.longest(priority, view.room, kinds) for priority in view.waiting.priorities)
    return [record for record in found if record is not None]


def _aged_at(record: Record, top: int, view: View) -> float:
    """When it has waited long enough below `top`; of each priority one at a time."""
    since = max(record.waits_since, view.aged.get(record.priority, -inf))
    return since + view.settings.age_every_s * (top - record.priority)
