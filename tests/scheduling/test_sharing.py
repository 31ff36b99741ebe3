"""Prompts that begin alike: what one has read, the others need not."""

from __future__ import annotations

import pytest
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.errors import EngineUnavailable
from strata.messages import Completed, Figures, Seq


def desk(*, pages: int = 400, slices: int = 4, **named: object) -> Desk:
    chosen = SchedulerSettings(**{"chunk_tokens": 64, "max_running": 4, **named})
    return Desk(chosen, Work(slices=slices, page_tokens=16), pages=pages)


def figures(house: Desk, seq: Seq) -> Figures:
    found = house.ended[seq].figures if seq in house.ended else house.scheduler.figures(seq, house.now)
    assert found is not None
    return found


def test_what_was_read_once_is_not_read_again():
    house = desk()
    first = house.submit(200, 4, like=1, alike=200)
    house.run()
    busy_s = house.engine.busy_s
    second = house.submit(200, 4, like=1, alike=200)
    house.run()
    assert (figures(house, first).cached_tokens, figures(house, second).cached_tokens) == (0, 192)
    assert figures(house, second).read_tokens == 200
    assert house.engine.busy_s - busy_s == pytest.approx(house.work.read_s(8) + 3 * house.work.step_s)
    assert house.scheduler.statistics(house.now).cached_tokens == 192
    assert house.scheduler.statistics(house.now).read_tokens == 208


def test_a_prompt_that_is_known_whole_is_read_from_its_last_page_on():
    """The logits of its last token are needed."""
    house = desk()
    house.submit(128, 2, like=1, alike=128)
    house.run()
    second = house.submit(128, 2, like=1, alike=128)
    house.run()
    assert figures(house, second).cached_tokens == 112
    assert house.ended[second].outcome == Completed("stop")


def test_two_with_one_long_beginning_share_it_while_the_first_still_reads():
    house = desk(max_running=4)
    first = house.submit(1000, 4, like=1, alike=900)
    house.run(4 * 10)
    second = house.submit(300, 4, like=1, alike=290)
    house.run(until=second)
    assert figures(house, second).cached_tokens == 288
    house.run()
    assert figures(house, first).cached_tokens == 0


def test_with_the_cache_off_all_is_read():
    house = desk(prefix_cache=False)
    for _ in range(2):
        seq = house.submit(200, 4, like=1, alike=200)
        house.run()
    assert figures(house, seq).cached_tokens == 0
    assert house.scheduler.statistics(house.now).pages_cached == 0


def test_what_decoding_wrote_is_not_shared():
    """Its bits may differ from those that reading gives."""
    house = desk()
    house.submit(40, 100, like=1, alike=40)
    house.run()
    second = house.submit(140, 4, like=1, alike=140)
    house.run()
    assert figures(house, second).cached_tokens == 32


def test_a_long_follow_up_that_is_mostly_known_counts_by_what_it_has_left_to_read():
    """B06: as the one that waits, and as the one that runs."""
    house = desk(max_running=1)
    house.submit(640, 2, like=1, alike=640)
    house.run()
    long = house.submit(600, 2)
    house.run(4)
    known = house.submit(700, 2, like=1, alike=640)
    house.run(2)
    assert house.state(known) == "reading", "60 tokens are less than half of what the other has left"
    assert house.state(long) == "parked (reading)"
    rival = house.submit(50, 2)
    house.run(1)
    assert house.state(known) == "reading", "and 50 are not half of 60"
    house.run(until=rival)
    assert list(house.ended)[1:] == [known, rival]


def test_a_queued_one_relies_on_nothing_and_reads_what_is_gone_when_it_starts():
    house = desk(pages=60, max_running=1, preempt="off")
    house.submit(400, 2, like=1, alike=400)
    house.run()
    house.submit(700, 200)
    house.run(2)
    waits = house.submit(450, 2, like=1, alike=400)
    house.run(until=waits)
    house.run()
    assert figures(house, waits).cached_tokens < 400
    assert figures(house, waits).read_tokens == 450


def test_what_a_started_request_relies_on_is_never_evicted():
    """The engine of this test holds a page that is granted while somebody relies on it to be a fault."""
    house = desk(pages=40, max_running=2)
    house.submit(320, 2, like=1, alike=320)
    house.run()
    holds = house.submit(330, 150, like=1, alike=320)
    house.run(8)
    assert figures(house, holds).cached_tokens == 320
    for _ in range(6):
        house.submit(100, 20)
    house.run()
    assert house.ended[holds].outcome == Completed("stop")
    now = house.scheduler.statistics(house.now)
    assert now.pages_held == 0
    assert now.pages_free == 40


def test_a_new_engine_knows_nothing_of_what_the_one_before_read():
    house = desk()
    house.submit(200, 4, like=1, alike=200)
    house.run()
    house.die(EngineUnavailable("the engine died"))
    second = house.submit(200, 4, like=1, alike=200)
    house.run()
    assert figures(house, second).cached_tokens == 0


@pytest.mark.parametrize("boundaries", range(0, 30, 3))
def test_a_writer_that_leaves_takes_nothing_from_those_that_share_what_it_read(boundaries: int):
    house = desk()
    first = house.submit(400, 4, like=1, alike=300)
    house.run(17)
    second = house.submit(350, 4, like=1, alike=300)
    house.run(boundaries)
    house.withdraw(first)
    house.run()
    assert house.ended[second].outcome == Completed("stop")
    assert figures(house, second).cached_tokens >= 256
    assert house.scheduler.statistics(house.now).pages_held == 0
