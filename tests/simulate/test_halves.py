"""Two halves of a trace are the whole run, or they are not put together."""

from __future__ import annotations

import pytest

from strata.config import SchedulerSettings
from strata.simulate import Machine, Run, TraceRequest, generate, laptop, simulate
from strata.simulate.halves import joined, simulate_in_halves, where_to_cut
from strata.simulate.run import COLUMNS, Desk

MACHINE = Machine(laptop(), pages=3000)
SETTINGS = SchedulerSettings(max_queued=1000)


def equal(one: Run, other: Run) -> None:
    for name in COLUMNS:
        assert getattr(one, name) == getattr(other, name), name
    assert one.statistics == other.statistics
    assert (one.refused, one.ended_at) == (other.refused, other.ended_at)


@pytest.mark.parametrize("seed", range(8))
def test_what_comes_after_an_idle_moment_is_what_comes_of_a_fresh_start(seed: int) -> None:
    trace = generate("mixed", 120, seed=seed, per_s=0.03)
    cut = where_to_cut(trace)
    desk = Desk(trace, SETTINGS, MACHINE)
    if desk.run_until_idle_before(cut):
        whole = joined(desk.run, simulate(trace[cut:], SETTINGS, MACHINE), cut)
    else:
        desk.run_all()
        whole = desk.run
    equal(whole, simulate(trace, SETTINGS, MACHINE))


def test_most_traces_that_leave_the_engine_idle_at_times_can_be_cut() -> None:
    cuts = 0
    for seed in range(8):
        trace = generate("mixed", 120, seed=seed, per_s=0.03)
        cuts += Desk(trace, SETTINGS, MACHINE).run_until_idle_before(where_to_cut(trace))
    assert cuts >= 6


def test_a_trace_that_leaves_nothing_idle_is_not_cut() -> None:
    trace = [TraceRequest(float(n), 500, 50) for n in range(40)]
    assert not Desk(trace, SETTINGS, MACHINE).run_until_idle_before(where_to_cut(trace))


def test_two_processes_give_the_run_of_one() -> None:
    """Also where nobody can be cut off, as everybody comes at once."""
    for trace in (generate("chat", 60, seed=3, per_s=0.02), [TraceRequest(0.0, 100, 5)] * 20):
        equal(simulate_in_halves(trace, SETTINGS, MACHINE), simulate(trace, SETTINGS, MACHINE))


def test_the_cut_is_the_longest_pause_near_the_middle() -> None:
    times = [0, 10, 1000, *range(1010, 1500), 1600, *range(1610, 2100), 9000]
    trace = [TraceRequest(float(time), 10, 1) for time in times]
    assert trace[where_to_cut(trace)].timestamp == 1600
    assert where_to_cut(trace[:1]) == 0
