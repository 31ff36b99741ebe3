"""What a decision costs, however many wait: counted here, and timed by `bench/decide.py`, which uses the same crowd."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from attrs import define, field
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.messages import Completed, Progress, Seq
from strata.scheduling import Decision

PROMPTS = (20, 100, 400, 900)


class Crowd(Desk):
    """So many queued, of many sizes, and a priority in ten; more than pages at every time."""

    def __init__(self, queued: int, slots: int) -> None:
        chosen = SchedulerSettings(max_queued=1_000_000, max_queued_tokens=10**9, chunk_tokens=64, short_tokens=300)
        super().__init__(chosen, Work(), pages=200, slots=slots)
        self.draw = random.Random(7)
        for number in range(queued):
            self.one_comes(number / 1000 - self.draw.random())

    def one_comes(self, arrived: float) -> None:
        self.scheduler.submit(
            self.number(),
            prompt_tokens=self.draw.choice(PROMPTS),
            max_tokens=40,
            priority=self.draw.choice((0,) * 9 + (1,)),
            arrived=arrived,
            named_max=True,
            now=0.0,
        )

    def decide_often(self, decide: Callable[[float], Decision], decisions: int) -> None:
        """Ask by `decide`; in between a slice is read, and two times in three one that started leaves, and another
        comes, so that there is something to say."""
        started: list[Seq] = []
        for number in range(decisions):
            now = float(number)
            decision = decide(now)
            started += [opening.seq for opening in decision.opens]
            if decision.step is not None:
                self.scheduler.took(decision.step.n, now)
                if decision.step.read is not None:
                    self.scheduler.progressed(Progress(decision.step.read, 0, 1, 4, 0.001), now)
            if started and number % 3:
                leaves = started.pop(self.draw.randrange(len(started)))
                self.scheduler.withdraw(leaves, Completed("stop"), now)
                self.one_comes(now)
            self.scheduler.take_ended()


@define
class Lines:
    """Counts the lines of Python that a decision runs through, and so all that it looks at one by one."""

    desk: Crowd
    counts: list[int] = field(factory=list)

    def decide(self, now: float) -> Decision:
        before = sys.gettrace()
        self.counts.append(0)
        sys.settrace(self._see)
        try:
            return self.desk.scheduler.decide(now)
        finally:
            sys.settrace(before)

    def _see(self, _frame: FrameType, event: str, _of: object) -> Any:
        self.counts[-1] += event == "line"
        return self._see


def most_lines(queued: int, slots: int) -> int:
    """Of a decision."""
    lines = Lines(Crowd(queued, slots))
    lines.desk.decide_often(lines.decide, 60)
    # The first one fills all rows.
    return max(lines.counts[1:])


@pytest.mark.parametrize("slots", [0, 200])
def test_a_decision_looks_at_no_more_than_grows_with_log_n_with_100_000_queued(slots: int):
    """B16: from 1 000 to 100 000 queued it grows by no more than from 10 to 1 000, without an arena and with one."""
    few, many, crowded = (most_lines(queued, slots) for queued in (10, 1_000, 100_000))
    assert crowded - many <= many - few
