"""A simulated run is the plain run, faster."""

from __future__ import annotations

from math import inf, isnan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_by_one import OneByOne

from strata.config import SchedulerSettings
from strata.messages import Seq, Step
from strata.scheduling.spans import ANY, ChunksRead, Steady, Taken
from strata.simulate import CostModel, Machine, Run, TraceRequest, generate, simulate
from strata.simulate.engine import SimulatedEngine

COST = CostModel(
    measured_on="a test",
    layers=3,
    slice_tokens=32,
    tile_tokens=16,
    slice_s=0.002,
    slice_row_s=0.0005,
    slice_row_position_s=0.000001,
    step_s={1: 0.010, 2: 0.012, 8: 0.024},
    step_row_position_s=0.00002,
)
MACHINE = Machine(COST, pages=4000, page_tokens=16)

costs = st.builds(
    lambda layers, row_s, step_s: CostModel(
        measured_on="a test",
        layers=layers,
        slice_tokens=32,
        tile_tokens=16,
        slice_s=0.001,
        slice_row_s=row_s,
        slice_row_position_s=0.000001,
        step_s={1: step_s, 3: step_s + 0.006},
        step_row_position_s=0.00002,
    ),
    layers=st.sampled_from([1, 2, 3, 8]),
    row_s=st.sampled_from([0.00005, 0.0005, 0.003]),
    step_s=st.sampled_from([0.002, 0.02, 0.1]),
)
machines = st.builds(
    Machine,
    cost=costs,
    pages=st.sampled_from([80, 120, 4000]),
    page_tokens=st.just(16),
    workspaces=st.sampled_from([1, 2]),
)
requests = st.builds(
    TraceRequest,
    timestamp=st.one_of(st.integers(0, 30).map(lambda n: 100.0 * n), st.floats(0, 3000)),
    input_length=st.sampled_from([1, 10, 64, 65, 130, 300, 300, 700, 1200]),
    output_length=st.integers(1, 80),
    priority=st.sampled_from([0, 0, 0, 0, 1, -1]),
    hash_ids=st.sampled_from([(), (), (7,), (7, 8), (7, 8, 9), (7, 7, 9)]),
)
traces = st.lists(requests, min_size=1, max_size=14).map(lambda many: sorted(many, key=lambda one: one.timestamp))
rules = st.fixed_dictionaries(
    {
        "max_running": st.sampled_from([1, 1, 2, 4, 8]),
        "preempt": st.sampled_from(["slice", "slice", "slice", "chunk", "off"]),
        "pass_burst_s": st.sampled_from([0.0, 0.0625, 0.5, 5.0]),
        "order_share": st.sampled_from([0.25, 0.5]),
        "short_tokens": st.sampled_from([0, 60, 400]),
        "finish_tokens": st.sampled_from([0, 3, 32]),
        "decode_gap_s": st.sampled_from([0.0, 0.25]),
        "read_share": st.sampled_from([0.5, 0.75]),
        "min_park_tokens": st.sampled_from([0, 0, 0, 70]),
        "max_parks": st.sampled_from([0, 0, 2]),
        "bypass_s": st.sampled_from([0.0, 0.5, 30.0]),
        "max_queued": st.sampled_from([3, 100]),
        "quantum_s": st.sampled_from([0.0, 0.125, 0.5, 5.0]),
        "turn_wait_s": st.sampled_from([0.0, 0.0625, 0.5, 4.0]),
        "age_every_s": st.sampled_from([0.0625, 0.5, 30.0]),
        "max_wait_s": st.sampled_from([None, None, 0.25, 1.0]),
        "open_reads": st.sampled_from([1, 2, 4]),
        "expect_new_tokens": st.sampled_from([1, 20, 256]),
    }
)


def same(trace: list[TraceRequest], chosen: SchedulerSettings, machine: Machine) -> Run:
    """Both ways, and that they agree."""
    plain = OneByOne(trace, chosen, machine)
    plain.go()
    run = simulate(trace, chosen, machine)
    assert run.refused == len(plain.refused)
    for seq in range(1, len(trace) + 1):
        end, at = plain.ended.get(Seq(seq)), seq - 1
        assert (end is None) == isnan(run.ttft_s[at])
        if end is not None:
            figures = end.figures
            assert run.ttft_s[at] == figures.ttft_s, seq
            assert run.total_s[at] == pytest.approx(figures.total_s, abs=1e-9), seq
            assert run.longest_gap_s[at] == figures.longest_gap_s, seq
            assert run.parks[at] == sum(figures.parks.values())
            assert run.engine_s[at] == pytest.approx(figures.engine_s)
            assert run.queue_s[at] == pytest.approx(figures.queue_s, abs=1e-9)
    one, other = run.statistics, plain.statistics()
    assert one is not None
    assert dict(one.purses) == pytest.approx(dict(other.purses), abs=1e-6)
    assert one.engine_s == pytest.approx(other.engine_s)
    assert one.longest_chunk_s == pytest.approx(other.longest_chunk_s)
    assert one.give_way_s == pytest.approx(other.give_way_s)
    exact = {
        "parks",
        "resumes",
        "ended",
        "refused",
        "read_tokens",
        "cached_tokens",
        "written_tokens",
        "steps",
        "longest_step_s",
        "give_way_count",
    }
    for name in sorted(exact):
        assert getattr(one, name) == getattr(other, name), name
    return run


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trace=traces, chosen=rules, machine=machines)
def test_a_simulated_run_equals_one_token_at_a_time(
    trace: list[TraceRequest], chosen: dict[str, object], machine: Machine
) -> None:
    same(trace, SchedulerSettings(chunk_tokens=64, **chosen), machine)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), kind=st.sampled_from(["agents", "chat", "mixed"]), rows=st.sampled_from([1, 2, 8]))
def test_a_simulated_run_of_long_prompts_equals_one_token_at_a_time(data: st.DataObject, kind: str, rows: int) -> None:
    trace = generate(kind, 12, seed=data.draw(st.integers(0, 99)), per_s=data.draw(st.sampled_from([0.5, 5.0])))
    chosen = SchedulerSettings(max_running=rows, chunk_tokens=512, pass_burst_s=data.draw(st.sampled_from([0.5, 5.0])))
    same(trace, chosen, Machine(COST, pages=2000, page_tokens=64))


def test_an_answer_and_a_parked_read_that_is_brought_to_its_chunks_end_pay_one_purse_in_turn() -> None:
    trace = generate("agents", 12, seed=8, per_s=0.5)
    chosen = SchedulerSettings(max_running=1, chunk_tokens=512, pass_burst_s=0.5)
    same(trace, chosen, Machine(COST, pages=2000, page_tokens=64))


def test_an_engine_that_will_hear_something_does_no_more_than_what_is_under_way() -> None:
    """However far work alone may go on."""
    engine = SimulatedEngine(COST, chunk_tokens=64, workspaces=2)
    engine.open(Seq(1), 64 * 1000, 5)
    engine.tell(Step(1, read=Seq(1)))
    engine.wake(0.0)
    engine.tell(Step(2))
    under_way = engine.next_boundary
    facts = engine.run(inf, Steady(slices=1000))
    assert engine.now == under_way
    assert [getattr(fact, "slices", fact) for fact in facts] == [1, Taken(2, under_way)]
    assert engine.ran_out


def test_the_same_trace_gives_the_same_run() -> None:
    trace = generate("mixed", 200, seed=5, per_s=3.0)
    one, other = (simulate(trace, SchedulerSettings(), Machine(COST, pages=2000)) for _ in range(2))
    assert one.ttft_s == other.ttft_s
    assert one.total_s == other.total_s
    assert one.statistics == other.statistics


def test_everything_that_came_ends_and_gives_its_pages_back() -> None:
    trace = generate("mixed", 300, seed=6, per_s=8.0)
    run = simulate(trace, SchedulerSettings(max_queued=20), Machine(COST, pages=200))
    now = run.statistics
    assert now is not None
    assert run.refused > 0
    assert sum(now.ended.values()) == len(trace) - run.refused == sum(not isnan(value) for value in run.total_s)
    assert now.pages_free == now.pages_total
    assert now.pages_reserved == now.queued == now.running == now.blocked == now.half_read == 0
    served = [one for one, ttft in zip(trace, run.ttft_s, strict=True) if not isnan(ttft)]
    assert now.written_tokens == sum(one.output_length for one in served)
    assert now.read_tokens == sum(one.input_length for one in served)
    assert now.engine_s <= run.ended_at


def test_a_request_alone_is_as_fast_as_its_costs_say() -> None:
    trace = [TraceRequest(1000.0, 700, 50)]
    run = simulate(trace, SchedulerSettings(chunk_tokens=64), MACHINE)
    assert run.ttft_s[0] == COST.read_seconds(700, 64)
    assert run.total_s[0] == COST.read_seconds(700, 64) + COST.write_seconds(700, 50)
    assert run.ended_at == 1.0 + run.total_s[0]


def test_a_short_request_passes_a_long_one_unless_the_policy_is_first_come() -> None:
    trace = [TraceRequest(0.0, 2000, 5), TraceRequest(100.0, 20, 5)]
    waits = {}
    for preempt in ("off", "slice"):
        run = simulate(trace, SchedulerSettings(max_running=1, preempt=preempt, chunk_tokens=64), MACHINE)
        waits[preempt] = run.ttft_s[1]
    assert waits["slice"] < waits["off"] / 10


def test_equal_hash_ids_are_read_once_and_counted_as_cached() -> None:
    one, other = TraceRequest(0.0, 1300, 5, 0, (1, 2, 3)), TraceRequest(50_000.0, 1500, 5, 0, (1, 2, 4))
    run = same([one, other], SchedulerSettings(chunk_tokens=64), MACHINE)
    assert run.statistics is not None
    assert run.statistics.cached_tokens == 1024
    assert run.statistics.read_tokens == 1300 + 1500 - 1024
    alone = simulate([one, other], SchedulerSettings(chunk_tokens=64, prefix_cache=False), MACHINE)
    assert run.ttft_s[1] < alone.ttft_s[1] / 2


def test_a_block_that_follows_another_one_is_another_block() -> None:
    trace = [TraceRequest(0.0, 1024, 5, 0, (1, 2)), TraceRequest(50_000.0, 1024, 5, 0, (9, 2))]
    run = simulate(trace, SchedulerSettings(chunk_tokens=64), MACHINE)
    assert run.statistics is not None
    assert run.statistics.cached_tokens == 0


def test_what_could_never_fit_is_refused_and_counted() -> None:
    run = simulate(
        [TraceRequest(0.0, 10_000, 5), TraceRequest(0.0, 10, 5)], SchedulerSettings(), Machine(COST, pages=2)
    )
    assert run.refused == 1
    assert isnan(run.ttft_s[0])
    assert not isnan(run.ttft_s[1])


def test_the_work_of_a_day_is_a_few_events_for_each_request() -> None:
    """Never token by token: a hundred times the tokens is no more to do."""
    few = [TraceRequest(10_000.0 * n, 64, 3) for n in range(50)]
    many = [TraceRequest(100_000.0 * n, 64, 190) for n in range(50)]
    steps = [simulate(trace, SchedulerSettings(), MACHINE).statistics for trace in (few, many)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[0].steps == steps[1].steps


def test_whole_chunks_of_one_that_reads_alone_are_one_leap() -> None:
    engine = SimulatedEngine(COST, chunk_tokens=64, workspaces=2)
    engine.open(Seq(1), 64 * 1000 + 1, 5)
    engine.tell(Step(1, read=Seq(1)))
    engine.wake(0.0)
    facts = engine.run(inf, ANY)
    assert [type(fact) for fact in facts[:1]] == [ChunksRead]
    assert facts[0].position == 64 * 1000
    assert len(facts) < 5
