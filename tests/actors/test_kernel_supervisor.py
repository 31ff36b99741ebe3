"""A supervisor's actors live in its block, and what fails there is heard."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.actors.kernel import Actor, ActorInfo, ActorState, Registry, open_supervisor
from strata.errors import ActorGone, UnknownRequest


class Worker(Actor[str]):
    """Does what it is told by a word."""

    kind = "worker"

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id)
        self.cleaned_up_at: float | None = None

    async def run(self) -> None:
        try:
            await self.work()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            self.cleaned_up_at = trio.current_time()

    async def work(self) -> None:
        while True:
            word = await self.mailbox.receive()
            if word == "fail":
                raise ValueError("told to fail")
            if word == "end":
                return


class SlowStarter(Worker):
    says_when_running = True

    async def work(self) -> None:
        await trio.sleep(5)
        self.now_running()
        await super().work()


class FailingStarter(Worker):
    says_when_running = True

    async def work(self) -> None:
        await trio.sleep(5)
        raise ValueError("can't start")


class Parent(Actor[str]):
    """An actor with two workers of its own."""

    kind = "parent"

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.children = [Worker(), Worker()]
        self._registry = registry
        self.children_were_gone = False

    async def run(self) -> None:
        async with open_supervisor(self._registry, parent=self.id) as supervisor:
            for child in self.children:
                supervisor.spawn(child, on_failure="escalate")
            await self.mailbox.receive()
        self.children_were_gone = all(child.state.over for child in self.children)


class Reports:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[ActorInfo, Exception]] = []

    def __call__(self, info: ActorInfo, error: Exception) -> None:
        self.heard.append((info, error))


def states(actor: Actor[Any]) -> list[ActorState]:
    return [change.state for change in actor.history]


async def test_an_actor_runs_and_stops_with_its_supervisors_block(autojump_clock: MockClock) -> None:
    registry = Registry()
    worker = Worker()
    async with open_supervisor(registry) as supervisor:
        assert supervisor.spawn(worker, on_failure="escalate") is worker.ref
        assert worker.state is ActorState.STARTING
        await wait_all_tasks_blocked()
        assert worker.state is ActorState.RUNNING
        assert worker.id in registry
    assert states(worker) == [ActorState.STARTING, ActorState.RUNNING, ActorState.STOPPING, ActorState.STOPPED]
    assert [change.at for change in worker.history] == [0, 0, 0, 1]
    assert len(registry) == 0


async def test_an_actor_that_returns_has_stopped(autojump_clock: MockClock) -> None:
    worker = Worker()
    async with open_supervisor(Registry()) as supervisor:
        supervisor.spawn(worker, on_failure="escalate").tell("end")
        await worker.wait_ended()
        assert states(worker) == [ActorState.STARTING, ActorState.RUNNING, ActorState.STOPPED]


async def test_an_escalated_failure_ends_its_siblings_and_comes_out_as_itself(autojump_clock: MockClock) -> None:
    """B35: nothing dies silently; the siblings clean up first."""
    failing, sibling = Worker(), Worker()
    with pytest.raises(ValueError, match="told to fail"):
        async with open_supervisor(Registry()) as supervisor:
            supervisor.spawn(sibling, on_failure="escalate")
            supervisor.spawn(failing, on_failure="escalate").tell("fail")
            await trio.sleep_forever()
    assert failing.state is ActorState.FAILED
    assert failing.history[-1].reason == "ValueError: told to fail"
    assert sibling.state is ActorState.STOPPED
    assert sibling.cleaned_up_at is not None


async def test_a_reported_failure_is_heard_once_and_its_siblings_go_on(autojump_clock: MockClock) -> None:
    """B35: the listener gets what the actor was and its error, after it has left the registry."""
    reports = Reports()
    registry = Registry()
    failing, sibling = Worker(), Worker()
    async with open_supervisor(registry) as supervisor:
        supervisor.spawn(sibling, on_failure="escalate")
        supervisor.spawn(failing, on_failure=reports).tell("fail")
        await failing.wait_ended()
        await wait_all_tasks_blocked()
        (info, error) = reports.heard[0]
        assert (info.id, info.state, str(error)) == (failing.id, ActorState.FAILED, "told to fail")
        assert len(reports.heard) == 1
        assert sibling.state is ActorState.RUNNING
        assert [actor.id for actor in registry] == [sibling.id]


async def test_what_a_listener_raises_escalates(autojump_clock: MockClock) -> None:
    """B35: a bug in the one who hears of failures is a failure too."""

    def listen(info: ActorInfo, error: Exception) -> None:
        raise RuntimeError(f"{info.id} is too much") from error

    with pytest.raises(RuntimeError, match="worker-1 is too much"):
        async with open_supervisor(Registry()) as supervisor:
            supervisor.spawn(Worker(), on_failure=listen).tell("fail")
            await trio.sleep_forever()


async def test_a_listener_can_start_a_successor_under_the_same_id(autojump_clock: MockClock) -> None:
    registry = Registry()
    async with open_supervisor(registry) as supervisor:

        def again(info: ActorInfo, _error: Exception) -> None:
            supervisor.spawn(Worker(info.id), on_failure="escalate", restarts=info.restarts + 1)

        supervisor.spawn(Worker("the one"), on_failure=again).tell("fail")
        await trio.sleep(2)
        (info,) = registry.tree()
        assert (info.id, info.restarts, info.state) == ("the one", 1, ActorState.RUNNING)


async def test_a_failure_while_it_is_stopped_is_reported(autojump_clock: MockClock) -> None:
    """B35: also in what it does last."""

    class Untidy(Worker):
        async def work(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("left a mess")

    reports = Reports()
    async with open_supervisor(Registry()) as supervisor:
        supervisor.spawn(Untidy(), on_failure=reports)
        await wait_all_tasks_blocked()
    assert [str(error) for _, error in reports.heard] == ["left a mess"]


async def test_a_failure_beside_a_cancellation_is_reported_and_the_cancellation_goes_on(
    autojump_clock: MockClock,
) -> None:
    """B35: one task of the actor fails while another is cancelled from outside."""

    class Two(Worker):
        async def work(self) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(self.untidy)

        async def untidy(self) -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("left a mess")

    reports = Reports()
    with trio.move_on_after(1) as scope:
        async with open_supervisor(Registry()) as supervisor:
            supervisor.spawn(Two(), on_failure=reports)
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert [str(error) for _, error in reports.heard] == ["left a mess"]


async def test_start_waits_until_the_actor_runs(autojump_clock: MockClock) -> None:
    async with open_supervisor(Registry()) as supervisor:
        starter = SlowStarter()
        await supervisor.start(starter, on_failure="escalate")
        assert trio.current_time() == 5
        assert starter.state is ActorState.RUNNING


async def test_a_failure_to_start_is_raised_where_it_was_started_and_nowhere_else(autojump_clock: MockClock) -> None:
    reports = Reports()
    async with open_supervisor(Registry()) as supervisor:
        with pytest.raises(ValueError, match="can't start"):
            await supervisor.start(FailingStarter(), on_failure=reports)
        with pytest.raises(ValueError, match="can't start"):
            await supervisor.start(FailingStarter(), on_failure="escalate")
        await trio.sleep(1)
    assert reports.heard == []


async def test_a_failure_after_the_start_follows_the_childs_rule(autojump_clock: MockClock) -> None:
    reports = Reports()
    async with open_supervisor(Registry()) as supervisor:
        ref = await supervisor.start(SlowStarter(), on_failure=reports)
        ref.tell("fail")
        await trio.sleep(2)
        assert len(reports.heard) == 1
    with pytest.raises(ValueError, match="told to fail"):
        async with open_supervisor(Registry()) as supervisor:
            ref = await supervisor.start(SlowStarter(), on_failure="escalate")
            ref.tell("fail")
            await trio.sleep_forever()


async def test_an_actor_that_ends_before_it_ran_is_gone_for_who_started_it(autojump_clock: MockClock) -> None:
    class Idler(Worker):
        says_when_running = True

        async def work(self) -> None:
            await trio.sleep(1)

    async with open_supervisor(Registry()) as supervisor:
        with pytest.raises(ActorGone):
            await supervisor.start(Idler(), on_failure="escalate")


async def test_who_is_cancelled_while_it_starts_an_actor_leaves_none_behind(autojump_clock: MockClock) -> None:
    registry = Registry()
    starter = SlowStarter()
    async with open_supervisor(registry) as supervisor:
        with trio.move_on_after(2) as scope:
            await supervisor.start(starter, on_failure="escalate")
        assert scope.cancelled_caught
        await starter.wait_ended()
        assert states(starter) == [ActorState.STARTING, ActorState.STOPPING, ActorState.STOPPED]
        assert trio.current_time() == 3


async def test_an_actor_that_is_told_to_stop_while_it_starts_never_runs(autojump_clock: MockClock) -> None:
    class Stubborn(Worker):
        says_when_running = True

        async def work(self) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            self.now_running()
            await trio.sleep_forever()

    actor = Stubborn()
    async with open_supervisor(Registry()) as supervisor:
        supervisor.spawn(actor, on_failure="escalate")
        await trio.sleep(1)
        actor.stop()
        actor.stop()
    assert states(actor) == [ActorState.STARTING, ActorState.STOPPING, ActorState.STOPPED]


async def test_a_child_is_gone_before_its_parent(autojump_clock: MockClock) -> None:
    registry = Registry()
    parent = Parent(registry)
    async with open_supervisor(registry) as supervisor:
        supervisor.spawn(parent, on_failure="escalate").tell("end")
        await parent.wait_ended()
        assert parent.children_were_gone
    assert all(child.state is ActorState.STOPPED for child in parent.children)


async def test_a_childs_failure_climbs_the_tree_as_itself(autojump_clock: MockClock) -> None:
    registry = Registry()
    parent = Parent(registry)
    reports = Reports()
    async with open_supervisor(registry) as supervisor:
        supervisor.spawn(parent, on_failure=reports)
        parent.children[0].ref.tell("fail")
        await parent.wait_ended()
    assert [(info.id, str(error)) for info, error in reports.heard] == [("parent-1", "told to fail")]
    assert parent.children[1].state is ActorState.STOPPED


async def test_a_shielded_actor_outlives_a_cancellation_until_its_supervisor_ends(autojump_clock: MockClock) -> None:
    class Shielded(Worker):
        shielded = True

    last = Shielded()
    with trio.move_on_after(1):
        async with open_supervisor(Registry()) as supervisor:
            supervisor.spawn(last, on_failure="escalate")
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(3)
                assert last.state is ActorState.RUNNING
    assert states(last)[-2:] == [ActorState.STOPPING, ActorState.STOPPED]
    assert last.cleaned_up_at == 5


async def test_a_cancellation_from_outside_ends_all_and_leaves_no_task(autojump_clock: MockClock) -> None:
    registry = Registry()
    parent = Parent(registry)
    before = trio.lowlevel.current_statistics().tasks_living
    with trio.move_on_after(1):
        async with open_supervisor(registry) as supervisor:
            supervisor.spawn(parent, on_failure="escalate")
            await trio.sleep_forever()
    assert {actor.state for actor in (parent, *parent.children)} == {ActorState.STOPPED}
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert len(registry) == 0


async def test_several_errors_come_out_together(autojump_clock: MockClock) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with open_supervisor(Registry()) as supervisor:
            for _ in range(2):
                supervisor.spawn(Worker(), on_failure="escalate").tell("fail")
            await trio.sleep_forever()
    assert [str(error) for error in raised.value.exceptions] == ["told to fail"] * 2


async def test_what_the_block_itself_raises_comes_out_as_itself(autojump_clock: MockClock) -> None:
    worker = Worker()
    cause = KeyError("why")
    with pytest.raises(LookupError, match="mine") as raised:
        async with open_supervisor(Registry()) as supervisor:
            supervisor.spawn(worker, on_failure="escalate")
            raise LookupError("mine") from cause
    assert raised.value.__cause__ is cause
    assert worker.state is ActorState.STOPPED


async def test_the_tree_shows_each_actor_after_its_parent(autojump_clock: MockClock) -> None:
    registry = Registry()
    parent = Parent(registry)
    async with open_supervisor(registry) as supervisor:
        supervisor.spawn(Worker("first"), on_failure="escalate")
        supervisor.spawn(parent, on_failure="escalate")
        supervisor.spawn(Worker("last"), on_failure="escalate")
        await wait_all_tasks_blocked()
        shown = [(info.id, info.parent, info.kind) for info in registry.tree()]
    assert shown[:1] == [("first", None, "worker")]
    assert shown[1:4] == [
        ("parent-1", None, "parent"),
        ("worker-1", "parent-1", "worker"),
        ("worker-2", "parent-1", "worker"),
    ]
    assert shown[4:] == [("last", None, "worker")]


async def test_an_actor_whose_parent_does_not_live_is_shown_as_a_root(autojump_clock: MockClock) -> None:
    registry = Registry()
    async with open_supervisor(registry, parent="nobody") as supervisor:
        supervisor.spawn(Worker(), on_failure="escalate")
        assert [(info.id, info.parent) for info in registry.tree()] == [("worker-1", "nobody")]


async def test_an_actors_figures_are_frozen_and_its_own(autojump_clock: MockClock) -> None:
    registry = Registry()

    class Sleeper(Worker):
        async def work(self) -> None:
            await trio.sleep_forever()

    async with open_supervisor(registry) as supervisor:
        await trio.sleep(2)
        ref = supervisor.spawn(Sleeper(), on_failure="escalate", restarts=3)
        await wait_all_tasks_blocked()
        for _ in range(4):
            ref.tell("hello")
        await trio.sleep(2)
        assert registry.find(ref.id).info() == ActorInfo(
            id="worker-1",
            kind="worker",
            state=ActorState.RUNNING,
            since=2,
            started=2,
            depth=4,
            parent=None,
            restarts=3,
        )


async def test_two_of_one_id_can_not_live_at_once(autojump_clock: MockClock) -> None:
    registry = Registry()
    async with open_supervisor(registry) as supervisor:
        first = Worker("one")
        supervisor.spawn(first, on_failure="escalate")
        with pytest.raises(ValueError, match="'one' lives already"):
            supervisor.spawn(Worker("one"), on_failure="escalate")
        first.ref.tell("end")
        await first.wait_ended()
        await wait_all_tasks_blocked()
        supervisor.spawn(Worker("one"), on_failure="escalate")


async def test_the_ended_are_handed_over_and_no_longer_found(autojump_clock: MockClock) -> None:
    ended: list[Actor[Any]] = []
    registry = Registry(on_ended=ended.append)
    worker = Worker()
    async with open_supervisor(registry) as supervisor:
        ref = supervisor.spawn(worker, on_failure="escalate")
        assert registry.find(ref.id) is worker
        ref.tell("end")
    assert ended == [worker]
    with pytest.raises(UnknownRequest, match="worker-1"):
        registry.find(ref.id)
