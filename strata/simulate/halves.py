"""One long trace on two processors: its second half is begun where nobody is there, in a process of its own.

What the scheduler remembers of those who are gone is little: the purses, and what is only counted.  So where the first
half ends with nobody there and every purse full, what comes after it is what comes of a fresh start, and both halves
together are the whole run, to the last bit.  Where it doesn't, the first goes on to the end and the second is thrown
away.  Knows traces and runs; no rule and no cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final

from attrs import evolve

from strata.config import Preempt, SchedulerSettings
from strata.scheduling.decision import Statistics
from strata.simulate.run import COLUMNS, Desk, Machine, Run, simulate
from strata.simulate.trace import TraceRequest

MIDDLE: Final = 0.05
"""The cut is made where nobody comes for longest, in so much of the trace to both sides of its middle."""

SUMS: Final = (
    "steps",
    "resumes",
    "pages_out",
    "pages_in",
    "read_tokens",
    "cached_tokens",
    "written_tokens",
    "engine_s",
    "give_way_count",
    "give_way_s",
)
LONGEST: Final = ("longest_chunk_s", "longest_step_s", "give_way_longest_s")
COUNTS: Final = ("parks", "ended", "refused")


def simulate_in_halves(requests: Sequence[TraceRequest], settings: SchedulerSettings, machine: Machine) -> Run:
    """As `simulate`, and often in half the time."""
    cut = where_to_cut(requests)
    # With these a purse may be kept from what it would owe, by how long the longest chunk so far was.
    remembers = settings.preempt is not Preempt.SLICE or settings.min_park_tokens or settings.max_parks
    if not cut or remembers or any(request.hash_ids for request in requests):
        return simulate(requests, settings, machine)
    # Not forked: NumPy's threads would not live on in the child.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        second = pool.submit(_fresh, requests[cut:], settings, machine)
        desk = Desk(requests, settings, machine)
        if not desk.run_until_idle_before(cut):
            second.cancel()
            desk.run_all()
            return desk.run
        return joined(desk.run, second.result(), cut)


def where_to_cut(requests: Sequence[TraceRequest]) -> int:
    """The number of those before it; 0: nowhere."""
    around, middle = int(len(requests) * MIDDLE), len(requests) // 2
    places = range(max(1, middle - around), middle + around)
    return max(places, key=lambda at: requests[at].timestamp - requests[at - 1].timestamp, default=0)


def _fresh(requests: Sequence[TraceRequest], settings: SchedulerSettings, machine: Machine) -> Run:
    run = simulate(requests, settings, machine)
    run.requests = ()  # whoever asked for this has them, and they would have to travel
    return run


def joined(first: Run, second: Run, cut: int) -> Run:
    """The first half's run, and what came of those after it."""
    for name in COLUMNS:
        getattr(first, name)[cut:] = getattr(second, name)
    assert first.statistics is not None
    assert second.statistics is not None
    first.statistics = _sum(first.statistics, second.statistics)
    first.refused += second.refused
    first.ended_at = second.ended_at
    return first


def _sum(first: Statistics, second: Statistics) -> Statistics:
    together: dict[str, Any] = {name: getattr(first, name) + getattr(second, name) for name in SUMS}
    together |= {name: max(getattr(first, name), getattr(second, name)) for name in LONGEST}
    together |= {name: _counts(getattr(first, name), getattr(second, name)) for name in COUNTS}
    return evolve(second, purses={**first.purses, **second.purses}, **together)


def _counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(first) + Counter(second))
