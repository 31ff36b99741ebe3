"""Aging between priorities (R5): a lower one is never behind for ever, and has one quantum at a time."""

from __future__ import annotations

from math import nextafter

import pytest
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.messages import Seq
from strata.scheduling import Decision

QUANTUM_S, AGE_S = 0.5, 2.0


def desk(**named: object) -> Desk:
    rules = {
        "chunk_tokens": 64,
        "max_running": 1,
        "quantum_s": QUANTUM_S,
        "turn_wait_s": 0.4,
        "age_every_s": AGE_S,
        "short_tokens": 0,
        **named,
    }
    return Desk(SchedulerSettings(**rules), Work(), pages=10_000)


def parks(house: Desk, seq: Seq) -> dict[str, int]:
    figures = house.ended[seq].figures if seq in house.ended else house.scheduler.figures(seq, house.now)
    assert figures is not None
    return dict(figures.parks)


def engine_s(house: Desk, seq: Seq) -> float:
    figures = house.ended[seq].figures if seq in house.ended else house.scheduler.figures(seq, house.now)
    assert figures is not None
    return figures.engine_s


def keep_busy(house: Desk, until_s: float, *, clients: int, prompt: int, answer: int, priority: int = 0) -> None:
    """So many clients, each sending its next request when the last one ended."""
    sent: list[Seq | None] = [None] * clients
    while house.now < until_s:
        for i, seq in enumerate(sent):
            if seq is None or seq in house.ended:
                sent[i] = house.submit(prompt, answer, priority=priority)
        house.run(1)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("preempt", ["slice", "chunk"])
def test_a_foreground_read_is_never_interrupted_by_an_aged_background_one(rows: int, preempt: str):
    """B07: it has waited for twice its age, and still waits for the end of the read."""
    house = desk(max_running=rows, preempt=preempt, age_every_s=1.0)
    background = house.submit(2000, 4, priority=-1)
    house.run(4)
    foreground = house.submit(3000, 4)
    while house.state(foreground) in (None, "queued", "reading"):
        house.run(1)
    assert parks(house, foreground) == {}
    assert parks(house, background) == {"level": 1}
    assert house.now > 3.0
    house.run()
    assert set(parks(house, foreground)) == set()


def test_an_aged_one_takes_the_row_of_an_answer_that_has_had_its_quantum_by_time_alone():
    """R5: and gives it back after its own; nothing changes before either time."""
    house = desk()
    answer = house.submit(10, 1000, priority=1)
    house.run(6)
    background = house.submit(1000, 4)
    came = house.now
    assert house.wake_at == came + AGE_S
    house.engine.now = nextafter(came + AGE_S, 0)
    assert house.decide() == Decision(wake_at=came + AGE_S)
    house.engine.now = came + AGE_S
    assert [opening.seq for opening in house.decide().opens] == [background]
    assert parks(house, answer) == {"aged": 1}
    house.run(2)
    assert house.wake_at == pytest.approx(came + AGE_S + QUANTUM_S)
    house.engine.now = nextafter(house.wake_at, 0)
    assert house.decide() == Decision(wake_at=house.wake_at)
    house.engine.now = house.wake_at
    house.decide()
    assert parks(house, background) == {"level": 1}
    assert house.state(answer) == "decoding"


def test_an_answer_that_has_just_got_its_row_keeps_it_for_a_quantum_however_old_the_one_below():
    house = desk()
    first = house.submit(10, 95, priority=1)
    background = house.submit(1000, 4)
    while house.now < 1.7:
        house.run(1)
    second = house.submit(10, 500, priority=1)
    house.run(until=first)
    got_it = house.now
    assert AGE_S - QUANTUM_S < got_it < AGE_S
    while not parks(house, second):
        house.run(1)
    assert parks(house, second) == {"aged": 1}
    assert house.state(background) == "reading"
    assert house.now - got_it == pytest.approx(QUANTUM_S, abs=house.work.step_s)


def test_a_read_under_traffic_above_that_never_ends_has_one_quantum_in_every_age():
    """R12: with arrivals that never stop, and the clock starts again when it parks."""
    house = desk()
    background = house.submit(6000, 4, priority=-1)
    keep_busy(house, 30.0, clients=3, prompt=100, answer=5)
    rounds = 30.0 / (AGE_S + QUANTUM_S + house.work.alone_s(100, 5))
    assert engine_s(house, background) >= (int(rounds) - 1) * QUANTUM_S
    assert engine_s(house, background) <= (rounds + 1) * (QUANTUM_S + house.work.slice_s(64))
    waits = [end.figures.total_s for end in house.ended.values()]
    assert max(waits) <= QUANTUM_S + 4 * house.work.alone_s(100, 5) + 0.1, "those above wait for one quantum"


def test_two_levels_below_take_twice_as_long():
    house = desk()
    background = house.submit(6000, 4, priority=-2)
    keep_busy(house, 30.0, clients=3, prompt=100, answer=5)
    assert engine_s(house, background) == pytest.approx(30.0 / (2 * AGE_S + QUANTUM_S) * QUANTUM_S, rel=0.25)


def test_a_crowd_in_the_background_takes_no_more_than_one_of_them():
    """R5: of each priority only one ages at a time, or a queue of old ones would have every second quantum."""
    house = desk()
    foreground = house.submit(10, 1200)
    for _ in range(20):
        house.submit(1000, 4, priority=-1)
    house.run(until=foreground)
    total = house.ended[foreground].figures.total_s
    assert 1 < parks(house, foreground)["aged"] <= total / AGE_S + 1
    assert engine_s(house, foreground) >= total * (1 - QUANTUM_S / AGE_S) - 1


def test_rows_that_are_all_held_by_answers_of_a_higher_priority_have_one_for_an_aged_one():
    """It once waited 406 s: eight answers above, and more of them coming."""
    house = desk(max_running=8)
    for _ in range(8):
        house.submit(50, 3000, priority=5)
    house.run(60)
    background = house.submit(200, 50)
    came = house.now
    while background not in house.tokens:
        if len(house.live) < 20:
            house.submit(50, 1500, priority=5)
        house.run(1)
    read_s = house.work.read_s(200) / house.settings.read_share
    assert house.now - came <= 5 * AGE_S + QUANTUM_S + read_s + 0.5


def test_what_was_started_by_age_is_protected_from_those_it_aged_past_for_a_quantum():
    house = desk()
    answer = house.submit(10, 1000, priority=1)
    background = house.submit(3000, 4)
    while not parks(house, answer):
        house.run(1)
    started = house.now
    house.submit(10, 4, priority=1)
    while not parks(house, background):
        house.run(1)
    assert house.now - started == pytest.approx(QUANTUM_S, abs=0.02)


def test_one_above_all_that_it_aged_past_waits_no_longer_than_turn_wait():
    house = desk(turn_wait_s=0.2)
    answer = house.submit(10, 1000, priority=1)
    background = house.submit(3000, 4)
    while not parks(house, answer):
        house.run(1)
    urgent = house.submit(10, 4, priority=2)
    came = house.now
    while house.state(urgent) == "queued":
        house.run(1)
    assert house.now - came == pytest.approx(0.2, abs=0.02)
    assert parks(house, background) == {"level": 1}


def test_a_shorter_equal_does_not_eat_the_quantum_that_another_has_by_its_age():
    """Four tiny clients kept one long read at 4 s of engine in 1 500 s: an age that is a level protects nothing."""
    house = desk()
    long = house.submit(6000, 4, priority=-1)
    sent: list[Seq | None] = [None] * 4
    foreground: list[Seq | None] = [None] * 2
    while house.now < 60.0:
        for clients, prompt, priority in ((sent, 10, -1), (foreground, 100, 0)):
            for i, seq in enumerate(clients):
                if seq is None or seq in house.ended:
                    clients[i] = house.submit(prompt, 4, priority=priority)
        house.run(1)
    # Each of the five has its turn by age; the tiny ones need little of theirs.
    turns = 60.0 / (5 * (AGE_S + QUANTUM_S))
    assert engine_s(house, long) >= int(turns) * QUANTUM_S


def test_the_oldest_that_takes_over_by_its_purse_goes_on_with_the_quantum_of_its_priority():
    house = desk(pass_burst_s=0.1, turn_wait_s=100.0)
    oldest, longest = house.submit(6000, 4), house.submit(6000, 4)
    while house.now < 1.0:
        house.run(1)
    answer = house.submit(10, 1000, priority=1)
    while not parks(house, answer):
        house.run(1)
    started = house.now
    assert house.state(longest) == "reading", "it has waited since it came, and the oldest since it was parked"
    while parks(house, oldest) != {"level": 2}:
        house.run(1)
    assert parks(house, longest) == {"purse": 1}
    assert house.now - started == pytest.approx(QUANTUM_S, abs=0.02)


def test_four_tiny_clients_beside_a_long_read_leave_it_its_share():
    """The same four as equals: who is older is paid for out of the purse."""
    house = desk(pass_burst_s=0.5, order_share=0.25)
    long = house.submit(6000, 4)
    keep_busy(house, 20.0, clients=4, prompt=10, answer=4)
    assert engine_s(house, long) >= 0.25 * (20.0 - 2 * 0.5 - 0.2)


@pytest.mark.parametrize("preempt", ["off", "chunk", "slice"])
def test_with_any_preempt_an_aged_one_is_next_into_a_free_place(preempt: str):
    house = desk(preempt=preempt)
    first = house.submit(100, 5)
    background = house.submit(100, 4, priority=-1)
    keep_busy(house, 6.0, clients=3, prompt=100, answer=5)
    assert background in house.ended
    assert AGE_S <= house.ended[background].figures.queue_s <= AGE_S + house.work.alone_s(100, 5)
    assert parks(house, first) == {}
