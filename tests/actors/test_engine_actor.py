"""The engine actor: what it passes on, and that it says exactly once that the engine is dead, whatever it died of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.actors.engine import EngineActor
from strata.actors.kernel import Actor, ActorInfo, ActorState, Mailbox, Ref, Registry, open_supervisor
from strata.errors import EngineUnavailable, ModelError
from strata.messages import (
    PROTOCOL,
    Close,
    Decoded,
    EngineDied,
    FromEngine,
    Grant,
    Open,
    Ready,
    Sampling,
    Seq,
    Step,
    Stop,
    Stopped,
    ToEngine,
    Took,
)
from strata.testing import Fault, ScriptedEngine

READY = Ready(
    incarnation=1, protocol=PROTOCOL, pages=8, page_tokens=16, context=128, workspaces=2, chunk_tokens=64, device="none"
)
Deliver = Callable[[FromEngine], None]


class PlainHost:
    """A host that does what a function says once it is up."""

    def __init__(self, life: Callable[[PlainHost, Deliver], Awaitable[None]], *, ready: Ready | None = READY) -> None:
        self.inbox: Mailbox[ToEngine] = Mailbox()
        self.deliver: Deliver
        self.cancelled = False
        self._life = life
        self._ready = ready

    def tell(self, message: ToEngine) -> None:
        self.inbox.tell(message)

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        self.deliver = deliver
        if self._ready is not None:
            task_status.started(self._ready)
        try:
            await self._life(self, deliver)
        except trio.Cancelled:
            self.cancelled = True
            raise


class Scene:
    """An engine actor that runs over a host, and all that it said."""

    def __init__(self, host: Any, **named: Any) -> None:
        self.heard: Mailbox[FromEngine] = Mailbox()
        self.actor = EngineActor(host, Ref("listener", self.heard), **named)
        self.reports: list[Exception] = []
        self.registry = Registry()

    def report(self, _info: ActorInfo, error: Exception) -> None:
        self.reports.append(error)

    @property
    def said(self) -> list[FromEngine]:
        return list(self.heard._messages)

    @property
    def deaths(self) -> list[str]:
        return [fact.reason for fact in self.said if isinstance(fact, EngineDied)]


@asynccontextmanager
async def playing(host: Any, **named: Any) -> AsyncIterator[Scene]:
    scene = Scene(host, **named)
    async with open_supervisor(scene.registry) as supervisor:
        supervisor.spawn(scene.actor, on_failure=scene.report)
        await wait_all_tasks_blocked()
        yield scene


async def obey_stop(host: PlainHost, deliver: Deliver) -> None:
    while not isinstance(await host.inbox.receive(), Stop):
        pass
    deliver(Stopped())


# -- a life without trouble -------------------------------------------------------------------------------------------


async def test_it_starts_when_the_engine_is_ready_and_says_so_first(autojump_clock: MockClock) -> None:
    async with playing(ScriptedEngine(start_s=3)) as scene:
        assert scene.actor.state is ActorState.STARTING
        await scene.actor.wait_started()
        assert trio.current_time() == 3
        assert scene.said == [scene.actor.ready]
        assert isinstance(scene.actor.ready, Ready)


async def test_what_it_is_told_reaches_the_engine_in_order_also_before_it_is_ready(autojump_clock: MockClock) -> None:
    host = ScriptedEngine(start_s=1)
    wishes = [Open(Seq(1), (1, 2), Sampling(max_tokens=1)), Grant(Seq(1), (0,)), Step(1, read=Seq(1)), Close(Seq(1))]
    async with playing(host) as scene:
        for wish in wishes[:2]:
            scene.actor.ref.tell(wish)
        await scene.actor.wait_started()
        for wish in wishes[2:]:
            scene.actor.ref.tell(wish)
        await trio.sleep(1)
        assert host.told == wishes


async def test_a_fact_is_with_its_reader_in_the_call_that_delivers_it() -> None:
    host = PlainHost(obey_stop)
    async with playing(host) as scene:
        host.deliver(Took(1))
        assert scene.said == [READY, Took(1)]


async def test_leaving_stops_the_engine_and_waits_for_it(autojump_clock: MockClock) -> None:
    async def tidy(host: PlainHost, deliver: Deliver) -> None:
        while not isinstance(await host.inbox.receive(), Stop):
            pass
        await trio.sleep(4)
        deliver(Took(9))
        deliver(Stopped())

    host = PlainHost(tidy)
    async with playing(host) as scene:
        pass
    assert trio.current_time() == 4
    assert scene.said == [READY, Took(9), Stopped()]
    assert scene.actor.state is ActorState.STOPPED
    assert not host.cancelled


async def test_the_engine_is_told_to_stop_once_though_several_wish_it(autojump_clock: MockClock) -> None:
    host = ScriptedEngine()
    async with playing(host) as scene:
        scene.actor.ref.tell(Stop())
        scene.actor.ref.tell(Stop())
        await scene.actor.wait_ended()
        assert scene.actor.state is ActorState.STOPPED
    assert host.told == [Stop()]
    assert scene.said[-1] == Stopped()
    assert scene.deaths == []


async def test_an_engine_that_is_not_ready_yet_is_stopped_at_once(autojump_clock: MockClock) -> None:
    host = ScriptedEngine(start_s=500)
    async with playing(host) as scene:
        await wait_all_tasks_blocked()
        scene.actor.stop()
    assert trio.current_time() == scene.actor.history[0].at
    assert scene.said == [Stopped()]
    assert scene.actor.state is ActorState.STOPPED


class OnThread(ScriptedEngine):
    """Is built to its end, as on a thread."""

    ends_at_once = False


async def test_one_that_can_not_be_cut_short_is_stopped_when_it_is_ready(autojump_clock: MockClock) -> None:
    host = OnThread(start_s=5)
    async with playing(host) as scene:
        scene.actor.stop()
    assert host.told == [Stop()]
    assert isinstance(scene.said[0], Ready)
    assert scene.said[1:] == [Stopped()]
    assert scene.actor.state is ActorState.STOPPED


async def test_a_cancellation_from_outside_waits_until_its_supervisor_stops_it(autojump_clock: MockClock) -> None:
    host = ScriptedEngine()
    with trio.move_on_after(1):
        async with playing(host) as scene:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                assert host.told == []
    assert host.told == [Stop()]
    assert scene.said[-1] == Stopped()


# -- every way to die -------------------------------------------------------------------------------------------------


async def says_that_it_died(_host: PlainHost, deliver: Deliver) -> None:
    await trio.sleep(1)
    deliver(EngineDied("signal 9", 7))


async def says_it_twice(_host: PlainHost, deliver: Deliver) -> None:
    await trio.sleep(1)
    deliver(EngineDied("signal 9", 7))
    deliver(EngineDied("signal 9 again"))


async def says_it_and_raises(_host: PlainHost, deliver: Deliver) -> None:
    await trio.sleep(1)
    deliver(EngineDied("signal 9", 7))
    raise RuntimeError("and more")


async def says_it_and_lingers(_host: PlainHost, deliver: Deliver) -> None:
    await trio.sleep(1)
    deliver(EngineDied("signal 9", 7))
    await trio.sleep_forever()


async def returns_without_a_word(_host: PlainHost, _deliver: Deliver) -> None:
    await trio.sleep(1)


async def raises(_host: PlainHost, _deliver: Deliver) -> None:
    await trio.sleep(1)
    raise RuntimeError("a bug")


async def raises_in_a_group(_host: PlainHost, _deliver: Deliver) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await trio.sleep(1)
        raise RuntimeError("a bug")


async def raises_a_start_error_too_late(_host: PlainHost, _deliver: Deliver) -> None:
    await trio.sleep(1)
    raise ModelError("the file is gone")


async def stops_unasked(_host: PlainHost, deliver: Deliver) -> None:
    await trio.sleep(1)
    deliver(Stopped())


async def cancels_itself(_host: PlainHost, _deliver: Deliver) -> None:
    await trio.sleep(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await trio.sleep_forever()


WAYS_TO_DIE = {
    says_that_it_died: "signal 9",
    says_it_twice: "signal 9",
    says_it_and_raises: "signal 9",
    says_it_and_lingers: "signal 9",
    returns_without_a_word: "without a word",
    raises: "RuntimeError: a bug",
    raises_in_a_group: "RuntimeError: a bug",
    raises_a_start_error_too_late: "the file is gone",
    stops_unasked: "without being told to",
    cancels_itself: "without a word",
}


@pytest.mark.parametrize("life", WAYS_TO_DIE, ids=lambda life: life.__name__)
async def test_an_engine_that_dies_is_said_to_be_dead_exactly_once(life: Any, autojump_clock: MockClock) -> None:
    """B35: whatever it died of, once, last, with its reason; and its actor has failed with it."""
    async with playing(PlainHost(life)) as scene:
        await scene.actor.wait_ended()
        await wait_all_tasks_blocked()
        scene.actor.ref.tell(Step(1))
    assert len(scene.deaths) == 1
    assert WAYS_TO_DIE[life] in scene.deaths[0]
    assert isinstance(scene.said[-1], EngineDied)
    assert scene.actor.state is ActorState.FAILED
    (error,) = scene.reports
    assert isinstance(error, EngineUnavailable)
    assert WAYS_TO_DIE[life] in str(error)
    assert scene.actor.mailbox.dropped == 1


@pytest.mark.parametrize("does", ["die", "raise", "vanish"])
async def test_death_is_heard_at_once_while_the_engine_works(does: Any, autojump_clock: MockClock) -> None:
    """B35: no listener waits for a fact that can't come."""
    host = ScriptedEngine(faults=[Fault(does=does, step=3)], slice_s=1, step_s=1, slices_per_chunk=1)
    async with playing(host) as scene:
        for wish in (Open(Seq(1), (1, 2), Sampling()), Grant(Seq(1), (0,)), Step(1, read=Seq(1))):
            scene.actor.ref.tell(wish)
        await scene.actor.wait_ended()
        assert trio.current_time() == 3
    assert len(scene.deaths) == 1
    assert sum(isinstance(fact, Decoded) for fact in scene.said) == 3


async def test_an_engine_that_says_it_is_dead_and_lingers_is_cleared_away(autojump_clock: MockClock) -> None:
    host = PlainHost(says_it_and_lingers)
    async with playing(host, stop_timeout_s=3) as scene:
        await scene.actor.wait_ended()
        assert trio.current_time() == 4
    assert host.cancelled


async def test_an_engine_that_hangs_when_told_to_stop_is_given_up_after_its_time(autojump_clock: MockClock) -> None:
    host = ScriptedEngine(faults=[Fault(does="hang", slice=1)])
    async with playing(host, stop_timeout_s=3) as scene:
        for wish in (Open(Seq(1), (1, 2), Sampling()), Grant(Seq(1), (0,)), Step(1, read=Seq(1))):
            scene.actor.ref.tell(wish)
        await trio.sleep(100)
        assert scene.deaths == []
    assert trio.current_time() == 103
    assert scene.deaths == ["the engine did not stop within 3 s"]
    assert scene.actor.state is ActorState.FAILED


async def test_what_hinders_the_engine_from_starting_is_the_starters_error(autojump_clock: MockClock) -> None:
    """B37: the error of the model file itself comes out; and who listens hears that there is no engine."""

    async def no_model(_host: PlainHost, _deliver: Deliver) -> None:
        await trio.sleep(1)
        raise ModelError("there is no file x.gguf: run `strata pull`")

    scene = Scene(PlainHost(no_model, ready=None))
    async with open_supervisor(scene.registry) as supervisor:
        with pytest.raises(ModelError, match="strata pull"):
            await supervisor.start(scene.actor, on_failure=scene.report)
    assert scene.deaths == ["there is no file x.gguf: run `strata pull`"]
    assert scene.said == [EngineDied(scene.deaths[0])]
    assert scene.reports == []


async def test_a_wish_that_the_host_refuses_kills_the_engine_and_not_its_reader(autojump_clock: MockClock) -> None:
    """B35: a host with a bug in `tell`."""

    class Refusing(PlainHost):
        def tell(self, message: ToEngine) -> None:
            if isinstance(message, Grant):
                raise ValueError("no")
            super().tell(message)

    async with playing(Refusing(obey_stop)) as scene:
        scene.actor.ref.tell(Grant(Seq(1), ()))
        await scene.actor.wait_ended()
    assert len(scene.deaths) == 1
    assert "ValueError: no" in scene.deaths[0]
    assert len(scene.reports) == 1


# -- incarnations -----------------------------------------------------------------------------------------------------


async def test_facts_of_another_incarnation_are_dropped_and_counted() -> None:
    """B32: from the other's Ready until its own."""
    host = PlainHost(obey_stop)
    async with playing(host) as scene:
        host.deliver(Took(1))
        host.deliver(evolve(READY, incarnation=2))
        host.deliver(Took(2))
        host.deliver(READY)
        host.deliver(Took(3))
        assert scene.said == [READY, Took(1), Took(3)]
        assert scene.actor.dropped == 1


async def test_facts_before_ready_and_after_the_end_are_dropped(autojump_clock: MockClock) -> None:
    """B32: a dead engine is not heard any more."""
    host = PlainHost(says_that_it_died)
    async with playing(host) as scene:
        await scene.actor.wait_ended()
        host.deliver(Took(4))
        host.deliver(Stopped())
        host.deliver(READY)
        assert scene.said[1:] == [EngineDied("signal 9", 7)]


@pytest.mark.parametrize(
    ("ready", "reason"),
    [
        (evolve(READY, incarnation=2), "engine 2 in the place of 1"),
        (evolve(READY, protocol=99), f"protocol 99, this server {PROTOCOL}"),
    ],
)
async def test_an_engine_that_is_not_the_one_asked_for_is_refused(
    ready: Ready, reason: str, autojump_clock: MockClock
) -> None:
    """B32: and its host is cancelled, not left running."""
    host = PlainHost(obey_stop, ready=ready)
    async with playing(host) as scene:
        await scene.actor.wait_ended()
    assert len(scene.deaths) == 1
    assert reason in scene.deaths[0]
    assert host.cancelled
    assert scene.actor.state is ActorState.FAILED
    assert not any(isinstance(fact, Ready) for fact in scene.said)


async def test_a_later_incarnation_is_another_actor_with_its_own_ref(autojump_clock: MockClock) -> None:
    """B32: what was meant for the dead engine does not reach its successor."""
    registry = Registry()
    heard: Mailbox[FromEngine] = Mailbox()
    listener = Ref("listener", heard)
    second = ScriptedEngine(incarnation=2)

    def succeed(info: ActorInfo, _error: Exception) -> None:
        successor: Actor[ToEngine] = EngineActor(second, listener, incarnation=2, id=info.id)
        supervisor.spawn(successor, on_failure="escalate", restarts=1)

    async with open_supervisor(registry) as supervisor:
        first = supervisor.spawn(EngineActor(ScriptedEngine(faults=[Fault()]), listener), on_failure=succeed)
        await trio.sleep(1)
        first.tell(Step(1))
        await trio.sleep(1)
        assert [(info.id, info.restarts) for info in registry.tree()] == [("engine", 1)]
    assert second.told == [Stop()]
    assert [type(fact) for fact in await heard.receive_batch()] == [Ready, EngineDied, Ready, Stopped]
