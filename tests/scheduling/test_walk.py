"""The scheduler, walked beside an honest engine: messages cross, clients come and go, the engine fails and dies."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from math import nextafter

from attrs import evolve, frozen
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from model_engine import Work
from watched_desk import TINY, WatchedDesk, named

from strata.config import SchedulerSettings
from strata.engine.drive import HELD_S
from strata.errors import EngineUnavailable, Overloaded, WaitedTooLong
from strata.messages import (
    Completed,
    Failed,
    Outcome,
    Seq,
)
from strata.scheduling import Decision


@frozen(kw_only=True)
class Wish:
    """A request of a walk."""

    prompt: int
    max_tokens: int
    answer: int
    priority: int
    late: float
    """How long before it was submitted it came in (seconds)."""
    named: bool
    boundaries: int
    """How far the engine and the desk go on after it."""
    like: int | None
    """Which others it begins like, if any, and for how long."""
    alike: int


wishes = st.builds(
    Wish,
    prompt=st.sampled_from([1, 10, 20, 64, 65, 130, 300, 300]),
    max_tokens=st.sampled_from([1, 2, 20, 100]),
    answer=st.integers(1, 60),
    priority=st.sampled_from([0, 0, 0, 0, 1, -1]),
    late=st.sampled_from([0.0, 0.0, 0.3]),
    named=st.booleans(),
    boundaries=st.integers(0, 12),
    like=st.sampled_from([None, 1, 1, 2]),
    alike=st.sampled_from([20, 70, 300]),
)


class Walk(RuleBasedStateMachine):
    """Random histories; what must hold is asserted at every decision, and at the end nothing is left."""

    @initialize(
        rules=st.fixed_dictionaries(
            {
                "max_running": st.sampled_from([1, 1, 2, 4]),
                "preempt": st.sampled_from(["slice", "slice", "chunk", "off"]),
                "pass_burst_s": st.sampled_from([0.02, 0.1, 1.0]),
                "order_share": st.sampled_from([0.25, 0.6]),
                "short_tokens": st.sampled_from([0, 60, 400]),
                "finish_tokens": st.sampled_from([0, 3]),
                "min_park_tokens": st.sampled_from([0, 0, 70]),
                "max_parks": st.sampled_from([0, 0, 2]),
                "bypass_s": st.sampled_from([0.0, 0.5, 30.0]),
                "quantum_s": st.sampled_from([0.0, 0.1, 0.5, 5.0]),
                "turn_wait_s": st.sampled_from([0.0, 0.05, 0.4]),
                "open_reads": st.sampled_from([1, 2, 4]),
                "age_every_s": st.sampled_from([0.05, 0.5, 30.0]),
                "max_wait_s": st.sampled_from([None, None, 0.4, 5.0]),
                "expect_new_tokens": st.sampled_from([1, 20, 256]),
                "swap_ratio": st.sampled_from([0.0, 10.0]),
                "prefix_cache": st.sampled_from([True, True, False]),
                "on_engine_death": st.sampled_from(["fail", "replay", "replay"]),
                "max_replays": st.sampled_from([0, 1, 3]),
            }
        ),
        slices=st.sampled_from([1, 2, 4, 16]),
        workspaces=st.sampled_from([1, 2]),
        pages=st.sampled_from([26, 60, 400]),
        slots=st.sampled_from([0, 1, 5, 30]),
        finishes=st.booleans(),
        held_s=st.sampled_from([0.0, HELD_S, 10 * HELD_S]),
        at_once=st.booleans(),
        first=st.lists(wishes, min_size=1, max_size=4),
    )
    def begin(
        self,
        rules: dict[str, object],
        slices: int,
        workspaces: int,
        pages: int,
        slots: int,
        finishes: bool,
        held_s: float,
        at_once: bool,
        first: list[Wish],
    ) -> None:
        chosen = SchedulerSettings(chunk_tokens=64, max_queued=10, **rules)
        work = Work(slices=slices, workspaces=workspaces)
        said = {"held_s": held_s, "at_once": at_once}
        self.desk = WatchedDesk(chosen, work, pages=pages, slots=slots, finishes_chunks=finishes, **said)
        self.withdrawn: list[Seq] = []
        self.deaths: Counter[Seq] = Counter()
        """Of engines in which it had state."""
        self.blamed: Counter[Seq] = Counter()
        """Of engines in whose last step it was, or one on its way."""
        self.submit(first)

    @rule(several=st.lists(wishes, min_size=1, max_size=4))
    def submit(self, several: list[Wish]) -> None:
        for wish in several:
            with suppress(Overloaded):
                self.desk.submit(
                    wish.prompt,
                    wish.max_tokens,
                    answer=wish.answer,
                    priority=wish.priority,
                    arrived=self.desk.now - wish.late,
                    named_max=wish.named,
                    like=wish.like,
                    alike=wish.alike,
                )
            self.desk.run(wish.boundaries)

    @rule()
    def leave_before_the_submit(self) -> None:
        seq = self.desk.number()
        assert not self.desk.withdraw(seq)
        self.withdrawn.append(seq)

    @precondition(lambda self: self.withdrawn)
    @rule()
    def submit_of_one_that_left(self) -> None:
        seq = self.withdrawn.pop()
        self.desk.submit(64, seq=seq)
        assert seq not in self.desk.asked

    @precondition(lambda self: self.desk.live)
    @rule(data=st.data(), stop=st.booleans())
    def leave(self, data: st.DataObject, stop: bool) -> None:
        seq = data.draw(st.sampled_from(list(self.desk.live)))
        others = {other: self.desk.state(other) for other in self.desk.live if other != seq}
        assert self.desk.withdraw(seq, Completed("stop") if stop else None)
        assert seq in self.desk.ended
        self.only_those_who_waited_too_long_are_gone(set(others))

    @precondition(lambda self: self.desk.ended)
    @rule(data=st.data())
    def leave_after_the_end(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(list(self.desk.ended)))
        assert not self.desk.withdraw(seq)

    @rule(boundaries=st.integers(1, 12), facts=st.integers(0, 9), deaf=st.integers(0, 5), more=wishes)
    def messages_cross(self, boundaries: int, facts: int, deaf: int, more: Wish) -> None:
        self.desk.engine.deaf = deaf
        for _ in range(boundaries):
            self.desk.engine.advance()
        self.submit([evolve(more, boundaries=0)])
        for _ in range(boundaries):
            self.desk.engine.advance()
            self.desk.hear(facts)

    @rule(boundaries=st.integers(1, 40))
    def both_go_on(self, boundaries: int) -> None:
        self.desk.run(boundaries)

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        before = self.desk.scheduler.statistics(self.desk.now).purses
        self.desk.engine.now += seconds
        self.desk.decide()
        assert self.desk.scheduler.statistics(self.desk.now).purses == before

    @precondition(lambda self: self.desk.wake_at is not None)
    @rule(part=st.floats(0, 1, exclude_max=True))
    def the_schedulers_time_comes(self, part: float) -> None:
        desk = self.desk
        wake_at = desk.wake_at
        assert wake_at is not None
        if wake_at <= desk.now:
            return
        for before in (desk.now + part * (wake_at - desk.now), nextafter(wake_at, desk.now)):
            desk.engine.now = max(desk.now, min(before, nextafter(wake_at, desk.now)))
            assert desk.decide() == Decision(wake_at=wake_at), "time alone changed the answer before its time"
        desk.engine.now = wake_at
        assert desk.decide().wake_at != wake_at

    @precondition(lambda self: self.desk.engine.sequences)
    @rule(data=st.data())
    def one_sequence_fails(self, data: st.DataObject) -> None:
        self.desk.engine.fail(data.draw(st.sampled_from(sorted(self.desk.engine.sequences))))

    @rule(luck=st.integers(0, 3))
    def the_engine_dies(self, luck: int) -> None:
        if luck:
            return
        desk = self.desk
        before = set(desk.live)
        queued = {seq for seq in desk.live if desk.state(seq) == "queued"}
        ran = {seq for seq in before - queued if desk.in_force < desk.placed[seq] or seq in named(desk.engine.step)}
        desk.die(EngineUnavailable("the engine died"))
        failed = {seq for seq in before - set(desk.live) if is_death(desk.ended[seq].outcome)}
        if desk.settings.on_engine_death == "fail":
            assert failed == before - queued
        else:
            assert all(self.deaths[seq] >= desk.settings.max_replays for seq in failed)
            assert all(self.blamed[seq] < desk.settings.max_replays for seq in ran - failed)
        self.deaths.update(before - queued)
        self.blamed.update(ran)
        self.only_those_who_waited_too_long_are_gone(before - failed)

    def only_those_who_waited_too_long_are_gone(self, before: set[Seq]) -> None:
        assert set(self.desk.live) <= before
        for seq in before - set(self.desk.live):
            outcome = self.desk.ended[seq].outcome
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, WaitedTooLong)
            limit = self.desk.settings.max_wait_s
            assert limit is not None
            assert self.desk.now - self.desk.asked[seq].arrived >= limit - TINY

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        desk = self.desk
        desk.run(20_000)
        assert not desk.live, "idle for ever with requests"
        now = desk.scheduler.statistics(desk.now)
        assert now.pages_free == now.pages_total
        assert (now.slots_free, now.pages_moving, now.short) == (now.slots_total, 0, 0)
        assert now.pages_reserved == now.queued == now.queued_tokens == now.running == now.blocked == 0
        assert not desk.engine.sequences
        if desk.settings.preempt == "chunk":
            # Who must run alone, and who lacks pages, don't wait for its end.
            parked = (desk.ended[seq].figures.parks for seq in desk.engine.parked_in_chunk)
            assert all(parks.keys() & {"suspect", "pages"} for parks in parked)
        assert all(
            evolve(step, n=0) != evolve(after, n=0) for step, after in zip(desk.steps, desk.steps[1:], strict=False)
        )
        desk.all_have_one_whole_end()


def is_death(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and isinstance(outcome.error, EngineUnavailable)


TestWalk = Walk.TestCase
# The same histories each time, so that a change is judged by what it changes; STRATA_WALK_EXAMPLES=2000 finds others.
_MORE = int(os.environ.get("STRATA_WALK_EXAMPLES", "0"))
TestWalk.settings = settings(max_examples=_MORE or 60, stateful_step_count=40, deadline=None, derandomize=not _MORE)
