"""The thread host keeps the protocol, ends with its run, and says once of what the engine died."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Awaitable, Callable

import protocol
import pytest
import trio
from toy_model import LOSES_DEVICE, ToyModel
from trio.testing import MockClock, wait_all_tasks_blocked

from strata.config import EngineSettings
from strata.engine.bell import SocketBell, make_bell
from strata.engine.budget import Budget
from strata.engine.engine import Engine
from strata.engine.host import PATIENCE_S, ThreadHost
from strata.engine.watchdog import LOOKS
from strata.errors import ModelError
from strata.messages import EngineDied, FromEngine, Grant, Open, Ready, Sampling, Seq, Step, Stop, Stopped, Took

CHUNK, PAGE = 64, 16
BUDGET = Budget(pages=96, page_tokens=PAGE, context=1024, rows=8, slots=40)


def toy_engine(model: ToyModel | None = None) -> Engine:
    return Engine(model or ToyModel(), EngineSettings(chunk_tokens=CHUNK, page_tokens=PAGE), BUDGET)


def toy_host() -> ThreadHost:
    return ThreadHost(toy_engine)


@pytest.mark.parametrize("holds", protocol.ALL, ids=lambda holds: holds.__name__)
async def test_the_thread_host_keeps_the_protocol(holds: Callable[[protocol.MakeHost], Awaitable[None]]) -> None:
    await holds(toy_host)


# -- building -------------------------------------------------------------------------------------------------------


async def test_the_engine_is_built_used_and_closed_on_one_thread_of_its_own() -> None:
    seen: set[str] = set()

    class Watched(ToyModel):
        def decode(self, rows):
            seen.add(threading.current_thread().name)
            return super().decode(rows)

        def close(self):
            seen.add(threading.current_thread().name)
            super().close()

    model = Watched()

    def make() -> Engine:
        seen.add(threading.current_thread().name)
        return toy_engine(model)

    async with protocol.running(lambda: ThreadHost(make, incarnation=3)) as session:
        session.open(Seq(1))
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    assert session.ready.incarnation == 3
    assert seen == {"strata-engine-3"}
    assert model.closed


async def test_what_hinders_the_start_is_raised_as_it_is() -> None:
    def make() -> Engine:
        raise ModelError("no such file")

    with pytest.RaisesGroup(pytest.RaisesExc(ModelError, match="no such file")):
        async with trio.open_nursery() as nursery:
            await nursery.start(ThreadHost(make).run, print)
    assert strata_threads() == []


async def test_what_is_told_before_the_start_is_not_lost() -> None:
    host = toy_host()
    host.tell(Stop())
    heard: list[FromEngine] = []
    await host.run(heard.append)
    assert heard == [Stopped()]


async def test_what_is_told_after_the_end_is_not_kept() -> None:
    host = toy_host()
    host.tell(Stop())
    await host.run(print)
    told = Grant(Seq(1), (1, 2, 3))
    still_there = weakref.ref(told)
    host.tell(told)
    del told
    gc.collect()
    assert still_there() is None


# -- dying ----------------------------------------------------------------------------------------------------------


async def test_an_engine_that_dies_says_so_once_and_its_run_returns() -> None:
    host = toy_host()
    heard: list[FromEngine] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            ready: Ready = await nursery.start(host.run, heard.append)
            assert ready.pages == BUDGET.pages
            host.tell(Open(Seq(1), (5, LOSES_DEVICE), Sampling()))
            host.tell(Grant(Seq(1), (0,)))
            host.tell(Step(7, read=Seq(1)))
    assert [fact for fact in heard if isinstance(fact, EngineDied | Stopped)] == [heard[-1]]
    assert heard[-1] == EngineDied("DeviceFault: the toy is out of order", last_step=7)
    assert strata_threads() == []


@pytest.mark.parametrize("where", ["read", "decode"])
async def test_running_out_of_memory_is_the_death_of_the_engine_and_not_of_one_sequence(where: str) -> None:
    class Starved(ToyModel):
        def _write(self, handle, layer, position, below):
            if (position < 20) == (where == "read"):
                raise MemoryError("the system gives none")
            return super()._write(handle, layer, position, below)

    host = ThreadHost(lambda: toy_engine(Starved()))
    heard: list[FromEngine] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(host.run, heard.append)
            host.tell(Open(Seq(1), tuple(range(3, 23)), Sampling(temperature=0.0, ignore_eos=True)))
            host.tell(Grant(Seq(1), tuple(range(8))))
            host.tell(Step(1, read=Seq(1)))
    assert heard[-1] == EngineDied("MemoryError: the system gives none", last_step=1)


async def test_whatever_escapes_the_engine_is_its_death(caplog: pytest.LogCaptureFixture) -> None:
    """B65: the log says where it happened."""

    class Bug(BaseException):
        pass

    class Broken(Engine):
        def advance(self) -> bool:
            raise Bug("nobody thought of this")

    def make() -> Engine:
        return Broken(ToyModel(), EngineSettings(chunk_tokens=CHUNK, page_tokens=PAGE), BUDGET)

    heard: list[FromEngine] = []
    with trio.fail_after(30):
        await ThreadHost(make).run(heard.append)
    assert heard == [EngineDied("Bug: nobody thought of this", last_step=None)]
    assert "in advance" in caplog.text
    assert "Bug: nobody thought" not in caplog.text


# -- leaving --------------------------------------------------------------------------------------------------------


def strata_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("strata-engine")]


def open_files() -> set[str]:
    gc.collect()
    return set(os.listdir("/dev/fd"))


async def test_no_thread_and_no_open_file_is_left() -> None:
    """B42: neither after a stop, nor after a cancel in the midst of a read, nor after a death."""
    before = open_files()
    for _ in range(3):
        await protocol.a_request_is_read_chunk_by_chunk_and_answered(toy_host)
        await protocol.a_cancelled_host_ends_and_says_nothing_more(toy_host)
        await test_an_engine_that_dies_says_so_once_and_its_run_returns()
    assert strata_threads() == []
    assert open_files() == before


async def test_a_cancel_ends_the_engine_within_a_slice_and_closes_its_reads() -> None:
    """B42: the half-done chunk is closed on the engine's own thread, and the rest of it never runs."""
    begun = threading.Event()
    go_on = threading.Event()

    class Slow(ToyModel):
        def slices(self, *known):
            begun.set()
            go_on.wait()
            return super().slices(*known)

    model = Slow()
    host = ThreadHost(lambda: toy_engine(model))
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, print)
        host.tell(Open(Seq(1), tuple(range(3, 60)), Sampling()))
        host.tell(Grant(Seq(1), tuple(range(8))))
        host.tell(Step(1, read=Seq(1)))
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
        # The cancel is on its way while the slice runs; then the slice ends.
        trio.lowlevel.spawn_system_task(_let_go, go_on)
    assert model.watch.now == pytest.approx(model.slice_s), "one slice ran, no second one"
    assert model.open_reads == 0
    assert strata_threads() == []


async def _let_go(event: threading.Event) -> None:
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    event.set()


class Hanging(ToyModel):
    """Its first slice hangs until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def slices(self, *known):
        self.begun.set()
        self.go_on.wait(60)
        return super().slices(*known)


async def test_an_engine_that_hangs_is_given_up_and_clears_up_when_it_goes_on(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B42: nothing of ours waits for ever; what is left behind says so, and goes when it can."""
    before = open_files()
    model = Hanging()
    host = ThreadHost(lambda: toy_engine(model), patience_s=3.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, print)
        host.tell(Open(Seq(1), tuple(range(3, 60)), Sampling()))
        host.tell(Grant(Seq(1), tuple(range(8))))
        host.tell(Step(1, read=Seq(1)))
        await trio.to_thread.run_sync(model.begun.wait)
        left = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - left == pytest.approx(3.0)
    assert "strata-engine-1 did not end within 3 s and is left behind" in caplog.text
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "strata-engine-1")
    model.go_on.set()
    await trio.to_thread.run_sync(thread.join)
    assert model.closed
    assert model.open_reads == 0
    assert open_files() == before


async def test_an_engine_that_hangs_in_a_slice_is_reported_as_dead(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B34: a thread can't be killed; it is left behind and says nothing more, even when it goes on."""
    model, heard = Hanging(), list[FromEngine]()
    host = ThreadHost(lambda: toy_engine(model), watchdog_floor_s=30.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, heard.append)
        host.tell(Open(Seq(1), tuple(range(3, 60)), Sampling()))
        host.tell(Grant(Seq(1), tuple(range(8))))
        host.tell(Step(4, read=Seq(1)))
        await trio.to_thread.run_sync(model.begun.wait)
        for _ in range(LOOKS + 1):
            await wait_all_tasks_blocked()
            assert heard == [Took(4)]
            mock_clock.jump(3.0)
        await wait_all_tasks_blocked()
        assert heard == [Took(4), EngineDied("no progress for 30 s", last_step=4)]
        mock_clock.jump(PATIENCE_S)
    assert "is left behind" in caplog.text
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "strata-engine-1")
    model.go_on.set()
    await trio.to_thread.run_sync(thread.join)
    assert model.closed
    assert len(heard) == 2


async def test_an_idle_engine_answers_the_watchdog() -> None:
    """B34: silence alone is no hang; who is asked and can answer lives on, however often."""
    asked = threading.Semaphore(0)

    class Counting(Engine):
        def advance(self) -> bool:
            asked.release()
            return super().advance()

    def make() -> Engine:
        return Counting(ToyModel(), EngineSettings(chunk_tokens=CHUNK, page_tokens=PAGE), BUDGET)

    async with protocol.running(lambda: ThreadHost(make, watchdog_floor_s=2.0)) as session:
        for _ in range(3):
            await trio.to_thread.run_sync(asked.acquire)
        assert session.facts == []
    assert session.facts == [Stopped()]


async def test_an_engine_that_hangs_while_it_is_built_is_given_up(autojump_clock: MockClock) -> None:
    before = open_files()
    go_on = threading.Event()

    def make() -> Engine:
        go_on.wait(60)
        return toy_engine()

    with trio.move_on_after(1.0):
        await ThreadHost(make, patience_s=3.0).run(print)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "strata-engine-1")
    go_on.set()
    await trio.to_thread.run_sync(thread.join)
    assert open_files() == before


async def test_an_idle_engine_waits_and_does_not_spin() -> None:
    """It looks for something to do after each message and each thing done, and not otherwise."""
    looks: list[bool] = []

    class Counting(Engine):
        def advance(self) -> bool:
            looks.append(super().advance())
            return looks[-1]

    def make() -> Engine:
        return Counting(ToyModel(), EngineSettings(chunk_tokens=CHUNK, page_tokens=PAGE), BUDGET)

    async with protocol.running(lambda: ThreadHost(make)) as session:
        session.open(Seq(1))
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
        for _ in range(100):
            # A while for the other thread, and a hundred wakes of this one.
            await trio.to_thread.run_sync(threading.active_count)
        told = 3
        assert looks.count(False) <= told + 1


# -- the bell -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_bell, SocketBell])
async def test_a_bell_is_heard_across_threads_however_often_it_rang(make) -> None:
    bell = make()
    try:
        for _ in range(3):
            await trio.to_thread.run_sync(bell.ring)
            for _ in range(100):
                bell.ring()
            with trio.fail_after(30):
                await bell.wait()
        with trio.move_on_after(0.01) as silence:
            await bell.wait()
        assert silence.cancelled_caught
    finally:
        bell.close()


async def test_a_bell_that_nobody_hears_never_blocks_who_rings() -> None:
    bell = SocketBell()
    try:
        for _ in range(100_000):
            bell.ring()
        with trio.fail_after(30):
            await bell.wait()
    finally:
        bell.close()
