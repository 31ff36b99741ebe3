"""The process host keeps the protocol, and leaves nothing of its process, whatever that died of."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import protocol
import pytest
import trio
from toy_model import LOSES_DEVICE
from toy_process import TOY, named

from strata.config import HostSettings
from strata.engine.process_host import ProcessHost
from strata.engine.spec import EngineSpec
from strata.errors import ConfigError, ModelError, StartError, StartFailed
from strata.messages import (
    Close,
    EngineDied,
    FromEngine,
    Grant,
    Open,
    Sampling,
    Seq,
    Step,
    Stop,
    Stopped,
    SwapOut,
    Took,
)

PATIENCE_S = 60


def toy_host() -> ProcessHost:
    return ProcessHost(TOY)


@pytest.mark.parametrize("holds", protocol.ALL, ids=lambda holds: holds.__name__)
async def test_the_process_host_keeps_the_protocol(holds: Callable[[protocol.MakeHost], Awaitable[None]]) -> None:
    await holds(toy_host)


@asynccontextmanager
async def living(host: ProcessHost) -> AsyncIterator[protocol.Session]:
    """A host to its end, which is for the test to bring about."""
    session = protocol.Session(host)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            session.ready = await nursery.start(host.run, session.hear)
            yield session


async def life_of(spec: EngineSpec, *, settings: HostSettings | None = None, token: int = 5) -> EngineDied:
    """The death of an engine that is given a prompt to read."""
    host = ProcessHost(spec, settings=settings)
    async with living(host) as session:
        session.tell(Open(Seq(1), (5, token), Sampling()), Grant(Seq(1), (0,)), Step(7, read=Seq(1)))
    deaths = [fact for fact in session.facts if isinstance(fact, EngineDied | Stopped)]
    assert deaths == session.facts[-1:], "it is said once, and last"
    assert isinstance(deaths[0], EngineDied)
    assert children() == []
    return deaths[0]


def all_children() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [pid for task in tasks for pid in (task / "children").read_text().split()]


_BEFORE: set[str] = set()
"""What other tests have left running: multiprocessing keeps a process of its own."""


@pytest.fixture(autouse=True)
def _who_was_there() -> None:
    _BEFORE.clear()
    _BEFORE.update(all_children())


def children() -> list[str]:
    """Processes of this test that are there or have not been buried."""
    return [pid for pid in all_children() if pid not in _BEFORE]


def open_files() -> set[str]:
    gc.collect()
    return set(os.listdir("/dev/fd"))


async def start(spec: EngineSpec, settings: HostSettings | None = None) -> None:
    """Raises what hinders it."""
    with trio.fail_after(PATIENCE_S):
        await ProcessHost(spec, settings=settings).run(pytest.fail)


# -- being built ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ConfigError("kv_mib", "too much: raise it"), ModelError("a file: it is cut short"), StartError("no")]
)
async def test_what_hinders_the_start_is_raised_as_it_is(error: StartError, caplog: pytest.LogCaptureFixture) -> None:
    """B37: as the same type with the same text, and not a line more, though it happened in another process."""
    words = [error.setting, "too much: raise it"] if isinstance(error, ConfigError) else [str(error)]
    with pytest.raises(type(error)) as caught:
        await start(named("refuse", kind=type(error).__name__, words=words))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert caplog.messages == []
    assert children() == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (named("break_while_building"), "could not be built (ZeroDivisionError: nobody thought of this)"),
        (named("exit_while_building"), "could not be built: its process ended with exit code 7"),
        (EngineSpec("toy_process:nothing"), "could not be built (AttributeError: "),
        (EngineSpec("no.such.module:f"), "could not be built (ModuleNotFoundError: "),
    ],
    ids=["breaks", "exits", "no function", "no module"],
)
async def test_an_engine_that_can_not_be_built_is_told_in_one_line(
    spec: EngineSpec, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StartError) as caught:
        await start(spec)
    assert says in str(caught.value)
    assert isinstance(caught.value, StartFailed) is ("its process" in says), "it was lost, or it refused"
    assert "\n" not in str(caught.value)
    assert children() == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (HostSettings(engine_cpus="9000-9001"), "engine_cpus: the system refuses it"),
        (HostSettings(engine_memory_mib=1024), "engine_memory_mib: memory ran out at 1024 MiB .*Unable to allocate"),
    ],
)
async def test_limits_that_can_not_be_kept_refuse_the_start(settings: HostSettings, says: str) -> None:
    """B37."""
    maker = "take_at_once" if settings.engine_memory_mib else "toy"
    with pytest.raises(StartError, match=says):
        await start(named(maker), settings)


async def test_a_native_library_that_gets_no_memory_within_its_limit_is_that_setting_s_doing() -> None:
    """B37: it ends the process by itself, with any code; without a limit, it is nobody's wrong setting."""
    spec = named("give_up_without_memory")
    with pytest.raises(ConfigError, match=r"engine_memory_mib: memory ran out at 1024 MiB .*ended with exit code 1"):
        await start(spec, HostSettings(engine_memory_mib=1024))
    with pytest.raises(StartFailed, match="its process ended with exit code 1"):
        await start(spec)


async def test_its_process_has_the_processors_and_the_niceness_that_it_was_given() -> None:
    cpu = max(os.sched_getaffinity(0))
    async with living(ProcessHost(TOY, settings=HostSettings(engine_cpus=str(cpu), engine_nice=3))) as session:
        assert isinstance(session.host, ProcessHost)
        pid = session.host.pid
        assert pid is not None
        assert os.sched_getaffinity(pid) == {cpu}
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3
        session.tell(Stop())


async def test_what_is_told_before_the_start_is_not_lost_and_after_the_end_not_kept() -> None:
    host = toy_host()
    host.tell(Stop())
    heard: list[FromEngine] = []
    await host.run(heard.append)
    assert heard == [Stopped()]
    host.tell(Stop())
    assert heard == [Stopped()]


async def test_a_stop_is_the_end_though_a_step_came_with_it() -> None:
    """Heard in one go, the step would come into force after the engine had said its last word; that was a death."""
    for _ in range(3):
        host = toy_host()
        for message in (Step(1, (), None, None), Stop(), Step(2, (), None, None)):
            host.tell(message)
        heard: list[FromEngine] = []
        await host.run(heard.append)
        assert heard[-1] == Stopped()
        assert heard.count(Stopped()) == 1


# -- dying ------------------------------------------------------------------------------------------------------------


async def test_an_engine_that_dies_of_itself_says_why() -> None:
    death = await life_of(TOY, token=LOSES_DEVICE)
    assert death.reason == "DeviceFault: the toy is out of order"
    assert (death.last_step, death.exit_code, death.signal) == (7, 1, None)


async def test_a_fault_in_native_code_says_its_signal_its_step_and_where_it_was() -> None:
    """B35: the child's last words are the fault's traceback."""
    death = await life_of(named("crash"))
    assert death.reason == "its process was killed by SIGSEGV"
    assert (death.last_step, death.exit_code, death.signal) == (7, None, "SIGSEGV")
    assert "Segmentation fault" in death.last_words
    assert "in advance" in death.last_words


async def test_what_a_library_says_before_it_exits_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    death = await life_of(named("complain"))
    assert death.reason == "its process ended with exit code 9"
    assert (death.last_step, death.exit_code, death.signal) == (7, 9, None)
    assert death.last_words == "to standard output\nsome driver: \ufffd out of luck"
    assert "engine 1: to standard output" in caplog.messages


async def test_what_it_says_goes_to_a_file_of_its_own_behind_that_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "engine.log"
    own.write_text("what another said\n")
    death = await life_of(named("complain"), settings=HostSettings(engine_log=own))
    assert death.last_words == "to standard output\nsome driver: \ufffd out of luck"
    first, *said = own.read_text().splitlines()
    assert first == "what another said"
    assert [line.partition(" WARNING ")[2] for line in said] == [
        "engine 1: to standard output",
        "engine 1: some driver: \ufffd out of luck",
    ]
    assert not any("to standard output" in message for message in caplog.messages)


async def test_a_log_that_can_not_be_written_refuses_the_start_by_name(tmp_path: Path) -> None:
    """B37."""
    before = open_files()
    with pytest.raises(ConfigError, match=r"engine_log: .*nowhere/x can't be written"):
        await start(TOY, HostSettings(engine_log=tmp_path / "nowhere/x"))
    assert open_files() == before


async def test_a_log_that_is_full_changes_no_cause_of_death() -> None:
    death = await life_of(named("crash"), settings=HostSettings(engine_log=Path("/dev/full")))
    assert death.reason == "its process was killed by SIGSEGV"


async def test_a_log_that_can_not_be_opened_any_more_is_no_reason_to_have_no_engine(tmp_path: Path) -> None:
    settings = HostSettings(engine_log=tmp_path / "nowhere/x")
    async with living(ProcessHost(TOY, incarnation=2, settings=settings)) as session:
        session.tell(Stop())
    assert isinstance(session.facts[-1], Stopped)


async def test_running_out_of_memory_is_the_death_of_the_engine_alone() -> None:
    """Whether Python notices or the system kills it, there is a server left to say so."""
    death = await life_of(named("take_too_much"), settings=HostSettings(engine_memory_mib=2048))
    assert death.reason.startswith("MemoryError") or "numpy" in death.reason
    assert death.exit_code == 1


async def test_what_is_no_message_is_the_death_of_who_said_it() -> None:
    with pytest.raises(StartError, match="it said a message of the unknown type 255"):
        await start(named("junk"))
    assert children() == []


async def test_a_child_that_reads_nothing_is_killed_before_it_costs_the_memory_of_the_server() -> None:
    host = ProcessHost(TOY, max_backlog=1 << 20)
    long = Open(Seq(1), tuple(range(1 << 16)), Sampling())
    async with living(host) as session:
        assert host.pid is not None
        os.kill(host.pid, signal.SIGSTOP)
        for _ in range(20):
            host.tell(long)
    assert session.facts == [EngineDied("it does not read what it is told", signal="SIGKILL")]
    assert children() == []


async def test_signals_that_the_terminal_sends_to_all_do_not_reach_it() -> None:
    """B40: the server drains first, and its engine must still be there."""
    async with living(toy_host()) as session:
        assert isinstance(session.host, ProcessHost)
        pid = session.host.pid
        assert pid is not None
        assert os.getpgid(pid) != os.getpgid(0)
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        session.open(Seq(1))
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
        session.tell(Stop())
    assert session.facts[-1] == Stopped()


# -- in every state of a sequence -------------------------------------------------------------------------------------


async def opened(session: protocol.Session) -> None:
    session.open(Seq(1))


async def in_a_chunk(session: protocol.Session) -> None:
    """Slices of this engine take long enough to be met."""
    session.open(Seq(1))
    await session.until(Took(session.step(read=Seq(1))))


async def between_chunks(session: protocol.Session) -> None:
    session.open(Seq(1), hold=session.ready.chunk_tokens)
    session.step(read=Seq(1))
    await session.until_read(Seq(1), session.ready.chunk_tokens)


async def decoding(session: protocol.Session) -> None:
    session.open(Seq(1), prompt=20, answer=200)
    session.step(read=Seq(1))
    await session.until_written(Seq(1), 2)


async def parked_in_its_read(session: protocol.Session) -> None:
    await in_a_chunk(session)
    await session.until(Took(session.step()))


async def parked_in_its_answer(session: protocol.Session) -> None:
    await decoding(session)
    await session.until(Took(session.step()))


async def closed(session: protocol.Session) -> None:
    await in_a_chunk(session)
    session.tell(Close(Seq(1)))


async def in_a_swap(session: protocol.Session) -> None:
    await parked_in_its_read(session)
    session.tell(SwapOut(Seq(1), (0, 1, 2), (4, 5, 6)))


async def in_the_arena(session: protocol.Session) -> None:
    await in_a_swap(session)
    await session.until_swapped(SwapOut(Seq(1), (0, 1, 2), (4, 5, 6)))


STATES = (
    opened,
    in_a_chunk,
    between_chunks,
    decoding,
    parked_in_its_read,
    parked_in_its_answer,
    in_a_swap,
    in_the_arena,
    closed,
)
BRIEF_DOG = HostSettings(watchdog_floor_s=1.0)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_a_killed_engine_is_buried_in_every_state(state: Callable[[protocol.Session], Awaitable[None]]) -> None:
    """B30: its death is said once, with the signal and the last step, and nothing of it is left."""
    before = open_files()
    host = ProcessHost(named("toy", slow_s=0.001))
    async with living(host) as session:
        await state(session)
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
    steps = [fact.n for fact in session.facts if isinstance(fact, Took)]
    assert [fact for fact in session.facts if isinstance(fact, EngineDied)] == [
        EngineDied(
            "its process was killed by SIGKILL, as the system does when memory runs out",
            steps[-1] if steps else None,
            signal="SIGKILL",
        )
    ]
    assert isinstance(session.facts[-1], EngineDied)
    assert children() == []
    assert open_files() == before


@pytest.mark.parametrize("state", [opened, in_a_chunk, decoding], ids=lambda state: state.__name__)
async def test_a_stopped_process_is_noticed_and_killed(
    state: Callable[[protocol.Session], Awaitable[None]],
) -> None:
    """B34: its silence is measured, also where there is nothing to do."""
    host = ProcessHost(named("toy", slow_s=0.001), settings=BRIEF_DOG)
    async with living(host) as session:
        await state(session)
        assert host.pid is not None
        os.kill(host.pid, signal.SIGSTOP)
    death = session.facts[-1]
    assert isinstance(death, EngineDied)
    assert death.reason.startswith("no progress for ")
    assert death.signal == "SIGKILL"
    assert children() == []


# -- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", ["toy", "hold_the_interpreter", "never_built"])
async def test_a_cancelled_host_leaves_nothing_whatever_its_process_does(maker: str) -> None:
    """B42."""
    before = open_files()
    host = ProcessHost(named(maker))
    heard: list[FromEngine] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            if maker == "never_built":
                nursery.start_soon(host.run, heard.append)
                while host.pid is None:
                    await trio.lowlevel.checkpoint()
            else:
                await nursery.start(host.run, heard.append)
                host.tell(Open(Seq(1), (5, 6), Sampling()))
                host.tell(Grant(Seq(1), (0,)))
                host.tell(Step(1, read=Seq(1)))
                while not heard:
                    await trio.sleep(0)
            nursery.cancel_scope.cancel()
    assert not any(isinstance(fact, EngineDied) for fact in heard)
    assert children() == []
    assert open_files() == before
    assert [thread.name for thread in threading.enumerate() if "strata" in thread.name] == []


PARENT = """
import sys, trio
from strata.engine.process_host import ProcessHost
from strata.messages import Grant, Open, Sampling, Seq, Step, Took
from toy_process import named

async def main():
    host = ProcessHost(named(sys.argv[1]))
    def hear(fact):
        if isinstance(fact, Took):
            print(host.pid, flush=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, hear)
        host.tell(Open(Seq(1), tuple(range(3, 50)), Sampling(max_tokens=900, temperature=0.0)))
        host.tell(Grant(Seq(1), tuple(range(8))))
        host.tell(Step(1, read=Seq(1)))

trio.run(main)
"""


@pytest.mark.parametrize("way", ["runs", "holds the interpreter", "is stopped"])
def test_an_engine_does_not_outlive_its_server(way: str) -> None:
    """Whatever it is doing when the server is killed: nothing stays that holds the device."""
    maker = "hold_the_interpreter" if way == "holds the interpreter" else "toy"
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", PARENT, maker]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    assert parent.stdout is not None
    with parent, parent.stdout:
        engine = int(parent.stdout.readline())
        # It can't be waited for, but for its end: it is not our child.
        watched = os.pidfd_open(engine)
        try:
            if way == "is stopped":
                os.kill(engine, signal.SIGSTOP)
            parent.kill()
            ended = _wait_readable(watched)
        finally:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(watched, signal.SIGKILL)
            os.close(watched)
    assert ended


def _wait_readable(file: int) -> bool:
    return bool(select.select([file], [], [], PATIENCE_S)[0])


async def test_an_engine_that_is_never_built_is_killed_in_the_end() -> None:
    """B34: nobody waits for ever for what hangs while it loads."""
    settings = HostSettings(engine_start_s=0.5, watchdog_floor_s=1.0)
    with pytest.raises(StartError, match=r"not built within 0\.5 s"):
        await start(named("never_built"), settings)
