"""What a decision costs, however many wait."""

from __future__ import annotations

import random
import time
from statistics import median

import pytest
from model_engine import Desk, Work

from strata.config import SchedulerSettings
from strata.messages import Completed, Progress, Seq

PROMPTS = (20, 100, 400, 900)


def crowd(queued: int, slots: int) -> Desk:
    """So many queued, of many sizes, and a priority in ten; more than pages at every time."""
    chosen = SchedulerSettings(max_queued=1_000_000, max_queued_tokens=10**9, chunk_tokens=64, short_tokens=300)
    desk = Desk(chosen, Work(), pages=200, slots=slots)
    draw = random.Random(7)
    for number in range(1, queued + 1):
        desk.scheduler.submit(
            Seq(number),
            prompt_tokens=draw.choice(PROMPTS),
            max_tokens=40,
            priority=draw.choice((0,) * 9 + (1,)),
            arrived=number / 1000 - draw.random(),
            named_max=True,
            now=0.0,
        )
    return desk


def cost_s(desk: Desk, decisions: int = 400) -> float:
    """Median processor time of a decision that starts somebody, in another's place or in a free row."""
    spent = []
    scheduler, draw = desk.scheduler, random.Random(3)
    started: list[Seq] = []
    for number in range(decisions):
        now = float(number)
        begun = time.process_time()
        decision = scheduler.decide(now)
        taken = time.process_time() - begun
        if decision.opens:
            spent.append(taken)
        started += [opening.seq for opening in decision.opens]
        if decision.step is not None:
            scheduler.took(decision.step.n, now)
            if decision.step.read is not None:
                scheduler.progressed(Progress(decision.step.read, 0, 1, 4, 0.001), now)
        if started and number % 3:
            scheduler.withdraw(started.pop(draw.randrange(len(started))), Completed("stop"), now)
        scheduler.take_ended()
    assert len(spent) > decisions / 20 or not scheduler.statistics(0.0).queued
    return median(spent)


@pytest.mark.parametrize("slots", [0, 200])
def test_a_decision_takes_under_a_millisecond_with_100_000_queued_and_grows_no_faster_than_log_n(slots: int):
    """B16: 10, 1 000 and 100 000 queued, without an arena and with one."""
    few, many, crowded = (cost_s(crowd(queued, slots)) for queued in (10, 1_000, 100_000))
    assert crowded < 0.001
    assert many < 4 * few + 0.0001
    assert crowded < 8 * few + 0.0001
