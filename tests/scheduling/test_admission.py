"""Who may come in, and who may start: sizes, the queue's limits, and requests that lack only pages."""

from __future__ import annotations

from math import nextafter

import pytest
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.errors import (
    EngineUnavailable,
    IllegalTransition,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    WaitedTooLong,
)
from strata.messages import Completed, Failed, Seq
from strata.scheduling import Decision


def desk(*, pages: int = 40, **named: object) -> Desk:
    return Desk(SchedulerSettings(**{"chunk_tokens": 64, "max_running": 4, **named}), Work(page_tokens=16), pages=pages)


def test_a_prompt_that_can_never_fit_is_refused_when_it_is_sent_naming_both_sizes():
    """B11: and the next request is served as if it had not come."""
    house = desk(pages=40)
    with pytest.raises(
        PromptTooLong, match=r"600 tokens and its answer may have 41, 641 together.* hold 640"
    ) as refused:
        house.submit(600, 41)
    assert (refused.value.tokens, refused.value.limit) == (641, 640)
    whole = house.submit(600, 40)
    house.run()
    assert house.ended[whole].outcome == Completed("stop")
    assert house.ended[whole].figures.queue_s == 0
    assert house.scheduler.statistics(house.now).refused == {"too long": 1}


@pytest.mark.parametrize(
    "wrong", [{"prompt_tokens": 3.0}, {"max_tokens": 3.0}, {"max_tokens": True}, {"priority": 0.5}]
)
def test_a_size_that_is_no_whole_number_is_refused_and_spoils_no_account(wrong: dict[str, object]):
    """It would meet the ledger only once the request had started, and end everybody's."""
    house = desk()
    named = {"prompt_tokens": 30, "max_tokens": 4, "priority": 0, **wrong}
    with pytest.raises(InvalidRequest, match="whole number") as refused:
        house.scheduler.submit(Seq(9), arrived=0.0, named_max=True, now=0.0, **named)
    assert refused.value.param in wrong
    assert house.scheduler.statistics(0.0).states == {}
    next_one = house.submit(30, 4)
    house.run()
    assert house.ended[next_one].outcome == Completed("stop")


def test_leaving_after_a_refusal_is_not_remembered_as_leaving_before_a_submit():
    house = desk(pages=4)
    with pytest.raises(PromptTooLong):
        house.submit(600, 41, seq=Seq(5))
    assert not house.withdraw(Seq(5))
    assert house.scheduler.take_ended() == ()
    with pytest.raises(IllegalTransition, match="twice"):
        house.submit(600, 40, seq=Seq(5))


def test_a_prompt_that_fits_but_not_now_neither_blocks_smaller_ones_for_ever_nor_is_passed_for_ever():
    """B12: for `bypass_s` others start past it, then none of lower rank does."""
    house = desk(pages=40, bypass_s=2.0)
    house.submit(100, 400)
    house.run(10)
    huge = house.submit(200, 200)
    first = house.submit(30, 2)
    house.run(until=first)
    assert house.state(huge) == "queued", "it was passed, and that is right for a while"
    assert house.scheduler.statistics(house.now).blocked == 1
    house.engine.now += 2.0
    late = house.submit(110, 2)
    house.run(50)
    assert house.state(late) == "queued", "it could start, and is of lower rank"
    above = house.submit(30, 2, priority=1)
    house.run(until=above)
    house.run(until=huge)
    house.run()
    assert house.scheduler.statistics(house.now).blocked == 0
    reading = [seq for state, seq in house.order if state == "reading"]
    assert reading.index(huge) < reading.index(late)


def test_one_that_was_short_of_pages_once_but_fits_now_keeps_nobody_from_passing():
    """B12: its read only waits its turn, and that is the purse's business."""
    house = desk(pages=90, bypass_s=1.0)
    holds = house.submit(700, 100)
    house.run(4 * 11)
    assert house.state(holds) == "decoding"
    huge = house.submit(600, 200)
    assert house.scheduler.statistics(house.now).blocked == 1
    other = house.submit(400, 100)
    house.run(4)
    assert house.state(other) == "reading"
    house.engine.now += 1.0
    house.withdraw(holds)
    short = house.submit(20, 2)
    assert house.state(huge) == "queued"
    assert house.state(short) == "reading"


def test_a_blocked_one_lets_nobody_of_lower_rank_by_after_bypass_s_and_still_those_above():
    """B12: what ranks above it may start, what ranks below may not."""
    house = desk(pages=40, bypass_s=0.0)
    house.submit(100, 400)
    house.run(10)
    huge = house.submit(200, 200)
    below, equal, above = (house.submit(30, 2, priority=priority) for priority in (-1, 0, 1))
    assert [house.state(seq) for seq in (huge, below, equal, above)] == ["queued", "queued", "queued", "reading"]


def test_what_has_started_is_never_short_of_pages():
    """The worst cases of all that started fit beside each other, though pages are granted one by one."""
    house = desk(pages=40)
    several = [house.submit(30, 130) for _ in range(6)]
    house.run(30)
    now = house.scheduler.statistics(house.now)
    assert now.pages_reserved == 40
    assert now.pages_held < 30
    house.run()
    assert all(len(house.tokens[seq]) == 130 for seq in several)


def test_pages_are_granted_to_the_end_of_the_next_chunk_and_then_one_ahead():
    house = desk(pages=100)
    one = house.submit(300, 100)
    assert house.scheduler.statistics(0.0).pages_held == 8
    house.run(4)
    assert house.scheduler.statistics(0.0).pages_held == 12
    house.run(16)
    assert house.state(one) == "decoding"
    assert house.scheduler.statistics(0.0).pages_held == 20
    house.run(5)
    assert len(house.tokens[one]) == 6
    assert house.scheduler.statistics(0.0).pages_held == 21


def test_a_sequence_that_stands_at_the_end_of_its_pages_gets_one_more_up_to_its_worst_case():
    house = desk(pages=100)
    one = house.submit(64, 64)
    held = house.scheduler.statistics(0.0).pages_held
    for expected in (held + 1, held + 2, 8, 8):
        house.scheduler.wants(one, 0.0)
        house.decide()
        assert house.scheduler.statistics(0.0).pages_held == min(8, expected)


def test_what_is_refused_and_what_is_granted_go_by_one_count_also_after_another_engine():
    """B17: the last page that the engine has can be held, and one more is never promised."""
    house = desk(pages=10)
    for pages in (10, 5):
        if house.pages != pages:
            house.die(EngineUnavailable("the engine died"), pages=pages)
        tokens = pages * house.work.page_tokens
        whole = house.submit(tokens - 1, 1)
        with pytest.raises(PromptTooLong) as refused:
            house.submit(tokens, 1)
        assert (refused.value.tokens, refused.value.limit) == (tokens + 1, tokens)
        house.run(until=whole)
        assert house.tokens[whole] == [1]
        now = house.scheduler.statistics(house.now)
        assert now.pages_total == now.pages_free == pages


def test_a_full_queue_refuses_and_says_when_to_come_again():
    house = desk(max_running=1, max_queued=2)
    house.submit(640 - 40, 40)
    for _ in range(2):
        house.submit(600, 40)
    with pytest.raises(Overloaded) as refused:
        house.submit(30, 4)
    assert refused.value.retry_after_s == 1.0, "nothing is known of the engine yet"
    house.run(4 * 9)
    with pytest.raises(Overloaded, match="2 requests with 1200 tokens are queued already") as refused:
        house.submit(30, 4)
    assert refused.value.retry_after_s == pytest.approx(1.2)
    assert house.scheduler.statistics(house.now).refused == {"overloaded": 2}


def test_too_many_queued_tokens_refuse_but_an_empty_queue_takes_any_prompt():
    house = desk(max_running=1, max_queued_tokens=100)
    house.submit(600, 40)
    house.submit(500, 40)
    with pytest.raises(Overloaded):
        house.submit(1, 1)


def test_how_many_are_ahead_is_the_order_that_stands():
    house = desk(max_running=1)
    running = house.submit(600, 40)
    second, third = house.submit(500, 40), house.submit(500, 40)
    above = house.submit(500, 40, priority=1)

    def ahead(seq: Seq) -> int:
        figures = house.scheduler.figures(seq, house.now)
        assert figures is not None
        return figures.ahead

    assert [ahead(seq) for seq in (running, second, third, above)] == [0, 2, 3, 0]
    house.withdraw(second)
    assert ahead(third) == 2


def test_one_that_was_queued_for_max_wait_s_is_told_to_come_again_by_time_alone():
    """R1: at its time and not before; what has started stays, however long it is parked."""
    house = desk(pages=200, max_running=1, max_wait_s=3.0)
    runs = house.submit(600, 40)
    house.run(2)
    above = house.submit(600, 40, priority=1)
    late = house.submit(500, 40, arrived=-0.5)
    house.run(2)
    assert parked(house, runs)
    assert house.wake_at == 2.5
    house.engine.now = nextafter(2.5, 0)
    assert house.decide() == Decision(wake_at=2.5)
    house.engine.now = 2.5
    assert house.decide().wake_at is None
    outcome = house.ended[late].outcome
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, WaitedTooLong)
    assert "3.0 s, and at most 3 s" in str(outcome.error)
    assert outcome.error.retry_after_s >= 1.0
    house.engine.now = 100.0
    house.decide()
    house.run()
    assert {house.ended[seq].outcome for seq in (runs, above)} == {Completed("stop")}


def test_all_that_waited_too_long_end_at_once_and_make_room_in_the_queue():
    house = desk(max_running=1, max_wait_s=1.0, max_queued=3)
    house.submit(600, 40)
    for priority in (0, 1, -1):
        house.submit(300, 4, priority=priority)
    with pytest.raises(Overloaded):
        house.submit(30, 4)
    house.engine.now = 1.5
    house.decide()
    assert house.scheduler.statistics(house.now).queued == 0
    assert house.scheduler.statistics(house.now).ended == {"failed": 3}
    house.submit(30, 4)


def parked(house: Desk, seq: Seq) -> bool:
    return (house.state(seq) or "").startswith("parked")
