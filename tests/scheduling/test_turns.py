"""Turns (R3.4): equals of like length share what there is, and time alone brings the next turn."""

from __future__ import annotations

from math import ceil, nextafter

import pytest
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.messages import Seq
from strata.scheduling import Decision

QUANTUM_S, WAIT_S = 0.5, 0.4


def desk(*, slices: int = 4, **named: object) -> Desk:
    rules = {"chunk_tokens": 64, "max_running": 1, "quantum_s": QUANTUM_S, "turn_wait_s": WAIT_S, **named}
    return Desk(SchedulerSettings(**rules), Work(slices=slices), pages=10_000)


def parks(house: Desk, seq: Seq) -> dict[str, int]:
    figures = house.ended[seq].figures if seq in house.ended else house.scheduler.figures(seq, house.now)
    assert figures is not None
    return dict(figures.parks)


def ends(house: Desk) -> list[Seq]:
    return [seq for state, seq in house.order if state == "done"]


def time_comes(house: Desk) -> Decision:
    """Nothing happens but that the scheduler's own time comes."""
    assert house.wake_at is not None
    house.engine.now = house.wake_at
    return house.decide()


@pytest.mark.parametrize("rows", [1, 8])
def test_two_long_reads_of_the_same_length_share_the_engine(rows: int):
    """B07: each reads for a quantum, then the other; the first still ends first."""
    house = desk(max_running=rows)
    first, second = house.submit(3000, 4), house.submit(3000, 4)
    while house.now < 2 * QUANTUM_S + 0.1:
        house.run(1)
    read = [house.engine.sequences[seq].position for seq in (first, second)]
    assert all(abs(tokens - 500) < 150 for tokens in read)
    house.run()
    assert ends(house) == [first, second]
    assert set(parks(house, first)) == set(parks(house, second)) == {"turn"}
    assert parks(house, first)["turn"] == pytest.approx(3 / QUANTUM_S, abs=1.1)


@pytest.mark.parametrize("preempt", ["slice", "chunk"])
def test_a_turn_comes_by_time_alone_and_nothing_changes_before(preempt: str):
    """R1: `wake_at` is the earliest time at which time alone changes the answer."""
    house = desk(preempt=preempt, slices=1)
    first = house.submit(3000, 4)
    house.run(1)
    second = house.submit(3000, 4)
    waits_since = house.now
    assert house.wake_at == max(QUANTUM_S, waits_since + WAIT_S)
    house.engine.now = nextafter(house.wake_at, 0)
    assert house.decide() == Decision(wake_at=house.wake_at)
    decision = time_comes(house)
    assert decision.step is not None
    if preempt == "slice":
        assert [opening.seq for opening in decision.opens] == [second]
        assert parks(house, first) == {"turn": 1}
    else:
        assert decision.step.read_until == 128, "at the end of the chunk under way"


def test_one_that_has_just_come_waits_for_turn_wait_s_though_the_other_had_its_quantum_long_ago():
    house = desk()
    first = house.submit(3000, 4)
    while house.now < 3 * QUANTUM_S:
        house.run(1)
    came = house.now
    house.submit(1400, 4)
    assert house.state(first) == "reading"
    assert house.wake_at == came + WAIT_S


def test_max_parks_caps_turns_too():
    """B05: a turn is a park by an equal."""
    house = desk(max_parks=2)
    reads = [house.submit(3000, 4), house.submit(3000, 4)]
    house.run()
    assert parks(house, reads[0]) == {"turn": 2}


def test_nobody_waits_for_a_time_when_nobody_waits_for_a_turn():
    house = desk(max_running=2)
    house.submit(300, 20)
    assert house.wake_at is None
    house.submit(300, 20)
    house.run(30)
    assert house.wake_at is None


def test_with_turns_a_read_still_gives_way_at_the_end_of_a_chunk_only_where_preempt_says_so():
    house = desk(preempt="chunk")
    reads = [house.submit(2000, 4) for _ in range(3)]
    house.run()
    assert house.engine.parked_in_chunk == []
    assert all(parks(house, seq) for seq in reads)
    assert {reason for seq in reads for reason in parks(house, seq)} == {"turn"}


def test_a_younger_one_gets_no_turn_once_the_purse_is_empty():
    """R3.4: turns of younger ones are paid for like any passing, so the oldest keeps its share."""
    house = desk(pass_burst_s=0.0)
    reads = [house.submit(2000, 4), house.submit(2000, 4)]
    house.run()
    assert ends(house) == reads
    assert parks(house, reads[0]) == {}


def test_the_oldest_takes_its_turn_back_before_its_purse_is_spent():
    house = desk(pass_burst_s=100.0, finish_tokens=0)
    first = house.submit(2000, 4)
    house.run(1)
    second = house.submit(1999, 4)
    house.run()
    assert ends(house) == [first, second]
    assert parks(house, second).keys() == {"turn"}


@pytest.mark.parametrize("open_reads", [1, 2, 3])
def test_turns_open_no_more_reads_than_open_reads(open_reads: int):
    house = desk(open_reads=open_reads)
    reads = [house.submit(1500, 2) for _ in range(5)]
    most = 0
    while house.live:
        house.run(1)
        most = max(most, sum(house.state(seq) in ("reading", "parked (reading)") for seq in house.live))
    assert most == open_reads
    assert ends(house) == reads


def test_an_answer_is_parked_for_an_equal_only_after_its_quantum():
    """B14: and not at all once it is nearly done."""
    house = desk(short_tokens=0, finish_tokens=8)
    answer = house.submit(10, 40)
    other = house.submit(10, 40)
    while not parks(house, answer):
        house.run(1)
    assert house.now == pytest.approx(QUANTUM_S, abs=house.work.step_s)
    house.run()
    assert parks(house, answer) == {"turn": 1}
    assert parks(house, other) == {"turn": 1}
    house = desk(short_tokens=0, finish_tokens=30)
    answers = [house.submit(10, 40), house.submit(10, 40)]
    house.run()
    assert ends(house) == answers
    assert all(parks(house, seq) == {} for seq in answers)


@pytest.mark.parametrize(("rows", "others"), [(2, 1), (2, 3), (4, 5)])
def test_with_every_row_taken_by_answers_a_newcomer_has_its_turn_within_the_bound(rows: int, others: int):
    """R12: a quantum for every turn that comes before its own, the oldest's row left out."""
    finish = 4
    house = desk(max_running=rows, short_tokens=0, finish_tokens=finish, turn_wait_s=WAIT_S)
    for _ in range(rows + others):
        house.submit(10, 2000)
    house.run(rows * 4 + 4)
    came = house.now
    last = house.submit(10, 2000)
    while last not in house.tokens:
        house.run(1)
    before = others + 1
    rounds = ceil(before / (rows - 1))
    read_s = (others + 1) * house.work.read_s(10) / house.settings.read_share
    assert house.now - came <= WAIT_S + rounds * (QUANTUM_S + finish * house.work.step_s) + read_s + 0.1
    assert set(parks(house, Seq(1))) == set()


def test_newcomers_without_end_never_take_the_row_of_the_oldest_answer():
    """R3.4: with several rows it keeps its own, so that each ends at last."""
    house = desk(max_running=2, short_tokens=0)
    oldest = house.submit(10, 300)
    house.run(5)
    while oldest not in house.ended:
        if len(house.live) < 6:
            house.submit(10, 300)
        house.run(1)
    assert parks(house, oldest) == {}
    assert ends(house) == [oldest]


def test_an_answer_parked_for_short_ones_has_its_turn_though_they_never_end():
    """B14: with several rows nothing else bounds what short answers cost it."""
    house = desk(max_running=2, short_tokens=200, finish_tokens=4)
    house.submit(10, 1000)
    long = house.submit(10, 1000)
    house.run(10)
    short = house.submit(10, 180)
    house.run(2)
    assert parks(house, long) == {"short": 1}
    house.run(until=short)
    assert parks(house, short)["turn"] >= 1
    figures = house.scheduler.figures(long, house.now)
    assert figures is not None
    assert figures.longest_gap_s <= QUANTUM_S + 5 * house.work.step_s
