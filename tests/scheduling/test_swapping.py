"""More than the device holds: who is short of pages, whose pages move, and that everybody ends."""

from __future__ import annotations

import pytest
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.errors import EngineUnavailable, PromptTooLong
from strata.messages import Completed, Seq


def desk(*, pages: int, slots: int, slices: int = 4, move_s: float = 0.001, **named: object) -> Desk:
    chosen = SchedulerSettings(**{"chunk_tokens": 64, "max_running": 4, "expect_new_tokens": 16, **named})
    return Desk(chosen, Work(slices=slices, page_tokens=16, move_s=move_s), pages=pages, slots=slots)


def all_end(house: Desk) -> None:
    """And whatever moved, nothing was read twice, no token is lost, and all places are free."""
    house.run(20_000)
    assert not house.live
    now = house.scheduler.statistics(house.now)
    assert now.read_tokens + now.cached_tokens == sum(end.figures.read_tokens for end in house.ended.values())
    for seq, end in house.ended.items():
        assert end.outcome == Completed("stop")
        assert len(house.tokens[seq]) == end.figures.written_tokens == house.engine.answers[seq]
    is_empty(house)


def is_empty(house: Desk) -> None:
    now = house.scheduler.statistics(house.now)
    assert (now.pages_free, now.slots_free) == (now.pages_total, now.slots_total)
    assert (now.pages_reserved, now.pages_moving, now.short) == (0, 0, 0)
    assert not house.engine.sequences


def moved(house: Desk) -> int:
    now = house.scheduler.statistics(house.now)
    return now.pages_in + now.pages_out


def parks(house: Desk, seq: Seq) -> int:
    return house.ended[seq].figures.parks.get("pages", 0)


# -- histories that broke earlier rules -------------------------------------------------------------------------------


def test_one_that_takes_more_than_the_device_is_refused_however_large_the_arena_is():
    """It could never run: device 4 pages, arena 3, one request of 5."""
    house = desk(pages=4, slots=3)
    with pytest.raises(PromptTooLong, match="hold 64"):
        house.submit(40, 40)
    house.submit(40, 24)
    all_end(house)


def test_of_two_answers_that_need_the_last_page_one_makes_room_for_the_other():
    """Device 10, arena 10, two decoders of 6."""
    house = desk(pages=10, slots=10)
    first, second = house.submit(30, 66), house.submit(30, 66)
    all_end(house)
    assert (parks(house, first), parks(house, second)) == (0, 1)
    assert list(house.ended) == [first, second]


def test_three_of_rising_priority_that_pack_no_whole_way_all_end():
    """Device 10, arena 10, three of 6: pages move singly."""
    house = desk(pages=10, slots=10)
    for priority in (0, 1, 2):
        house.submit(60, 36, priority=priority)
        house.run(14)
    all_end(house)
    assert [house.asked[seq].priority for seq in house.ended] == [2, 1, 0]


def test_pages_of_those_that_wait_do_not_move_back_and_forth():
    """Priorities 5, 1 and 0 with 25, 2 and 4 pages on 30."""
    house = desk(pages=30, slots=30, age_every_s=3600.0, max_running=1)
    low = house.submit(40, 24, priority=0)
    house.run(6)
    middle = house.submit(20, 12, priority=1)
    house.run(4)
    high = house.submit(300, 100, priority=5)
    all_end(house)
    assert list(house.ended) == [high, middle, low]
    assert 0 < moved(house) <= 2 * (4 + 2)


def test_two_answers_that_do_not_fit_together_do_not_evict_each_other_at_each_resume():
    house = desk(pages=12, slots=12, quantum_s=0.2, turn_wait_s=0.2)
    seqs = [house.submit(30, 120) for _ in range(2)]
    all_end(house)
    assert sum(parks(house, seq) for seq in seqs) == 1
    assert moved(house) <= 2 * 10


# -- promises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("slots", [30, 60])
def test_half_read_prompts_that_together_exceed_the_device_all_end_and_none_is_read_again(rows: int, slots: int):
    """B10: and none waits for ever on a page that a parked one holds."""
    house = desk(pages=30, slots=slots, max_running=rows, quantum_s=0.1, turn_wait_s=0.1, open_reads=8)
    for _ in range(5):
        house.submit(380, 60)
        house.run(6)
    house.run(40)
    started = sum(house.state(seq) != "queued" for seq in house.live)
    assert started * 24 > 30, "their pages do not fit at once"
    all_end(house)
    assert moved(house) > 0


def test_more_start_than_would_fit_at_worst_and_the_rest_waits_its_turn():
    """R6: by what is expected; the worst cases of two fill the device."""
    house = desk(pages=20, slots=20)
    for _ in range(4):
        house.submit(30, 130, answer=10)
    house.run(20)
    assert house.scheduler.statistics(house.now).states == {"decoding": 4}
    all_end(house)
    assert moved(house) == 0, "nobody took what was not expected"


def test_without_an_arena_what_has_started_is_never_short():
    house = desk(pages=20, slots=0)
    for _ in range(4):
        house.submit(30, 130, answer=10)
    house.run(10)
    assert house.scheduler.statistics(house.now).states == {"decoding": 2, "queued": 2}
    all_end(house)


def test_a_short_one_lets_nobody_of_its_priority_start_before_it():
    """B12: who was refused a page is not passed by newcomers that would take it; those above may start."""
    house = desk(pages=10, slots=10)
    house.submit(30, 66)
    second = house.submit(30, 66)
    while house.state(second) != "parked (decoding)":
        house.run(1)
    equal, above = house.submit(20, 2), house.submit(20, 2, priority=1)
    house.run(5)
    assert house.state(equal) == "queued"
    assert house.state(above) != "queued"
    assert house.scheduler.statistics(house.now).short == 1
    all_end(house)


def test_one_that_waits_for_room_is_passed_for_bypass_s_and_no_longer():
    """B12: a large read that was parked for a shorter one is not kept from its pages by newcomers without end."""
    house = desk(pages=30, slots=30, bypass_s=1.0, max_running=2)
    large = house.submit(380, 60)
    house.run(18)
    for _ in range(60):
        house.submit(20, 100, answer=60)
        house.run(12)
        if large in house.ended:
            break
    house.run(until=large)
    assert house.ended[large].figures.total_s < 30
    all_end(house)


def test_a_half_done_chunk_that_is_in_the_way_is_read_to_its_end_and_then_makes_room():
    house = desk(pages=26, slots=30, max_running=2)
    low = house.submit(300, 40, priority=0)
    house.run(4 * 4 + 2)
    high = house.submit(300, 60, priority=1)
    house.run(until=high)
    assert house.state(low) is not None
    assert all(step.read_until in (None, 320, 300) for step in house.steps)
    all_end(house)
    assert house.ended[low].figures.parks == {"level": 1}


def test_what_several_hold_stays_on_the_device_and_everybody_ends():
    house = desk(pages=30, slots=30, quantum_s=0.1, turn_wait_s=0.1)
    for family in (1, 2):
        house.submit(130, 2, like=family, alike=128)
        house.run()
    for number in range(6):
        house.submit(200, 100, like=1 + number % 2, alike=128)
        house.run(8)
    all_end(house)
    assert house.scheduler.statistics(house.now).cached_tokens > 0


@pytest.mark.parametrize(("ratio", "turns"), [(0.0, True), (1000.0, False)])
def test_a_turn_that_must_bring_pages_back_is_long_beside_that(ratio: float, turns: bool):
    """R3.4: an equal's turn costs two swaps where both do not fit."""
    house = desk(pages=26, slots=40, max_running=1, quantum_s=0.1, turn_wait_s=0.1, swap_ratio=ratio, move_s=0.01)
    first = house.submit(350, 60)
    house.run(8)
    second = house.submit(340, 60)
    house.run(until=first)
    house.run(until=second)
    several = sum(house.ended[seq].figures.parks.get("turn", 0) for seq in (first, second)) > 2
    assert several == turns


def test_moves_let_those_that_can_run_go_on_in_between():
    """At most 2 N + 2 pages without a slice or a step."""
    house = desk(pages=40, slots=40, max_running=2, age_every_s=3600.0)
    house.submit(500, 60, priority=-1)
    house.run(40)
    house.submit(20, 200, priority=1)
    house.run(6)
    house.submit(560, 20, priority=0)
    worst = 0
    while house.live:
        house.run(1)
        worst = max(worst, house.engine.moved)
    assert moved(house) > 6
    assert worst <= 6
    is_empty(house)


# -- leaving and dying ------------------------------------------------------------------------------------------------


def swapping() -> tuple[Desk, Seq, Seq]:
    """One parked whose pages have to go, and one above it that they go for."""
    house = desk(pages=30, slots=30, max_running=2)
    low = house.submit(300, 60, priority=0)
    house.run(4 * 5 + 3)
    return house, low, house.submit(400, 60, priority=1)


@pytest.mark.parametrize("who", ["low", "high"])
@pytest.mark.parametrize("boundaries", range(0, 60, 3))
def test_who_leaves_under_a_swap_takes_its_pages_and_slots_with_it_at_once(who: str, boundaries: int):
    """B22, B25: on the way out, in the arena, on the way in."""
    house, low, high = swapping()
    house.run(boundaries)
    leaves, stays = (low, high) if who == "low" else (high, low)
    house.withdraw(leaves)
    now = house.scheduler.statistics(house.now)
    assert now.pages_held + now.slots_total - now.slots_free <= 24 + 8
    house.run()
    assert house.ended[stays].outcome == Completed("stop")
    is_empty(house)


def test_there_are_swaps_at_those_boundaries():
    """Else the test above shows nothing."""
    house, low, high = swapping()
    seen = set()
    while low not in house.ended or high not in house.ended:
        house.run(1)
        now = house.scheduler.statistics(house.now)
        seen |= {("moving", now.pages_moving > 0), ("away", now.slots_free < now.slots_total)}
    assert ("moving", True) in seen
    assert ("away", True) in seen


@pytest.mark.parametrize("boundaries", range(0, 60, 5))
def test_an_engine_that_dies_under_a_swap_leaves_every_page_and_slot_free(boundaries: int):
    """B25"""
    house, _, _ = swapping()
    waits = house.submit(420, 60, priority=-1)
    house.run(boundaries)
    house.die(EngineUnavailable("the engine died"))
    is_empty(house) if waits in house.ended else house.run()
    is_empty(house)
