"""What is told to go wrong does, there and then and no sooner: in a process, on a thread, and in a script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import protocol
import pytest
import trio
from toy_process import TOY, toy
from trio.testing import MockClock

from strata.config import HostSettings
from strata.engine.host import EngineHost, ThreadHost
from strata.engine.process_host import ProcessHost
from strata.messages import (
    ChunkRead,
    Closed,
    Decoded,
    EngineDied,
    FromEngine,
    Progress,
    Seq,
    SeqFailed,
    Stop,
    Stopped,
    Took,
    Wants,
)
from strata.testing import ChaosEngine, ChaosHost, Mishap, ScriptedEngine, chaotic
from strata.testing.chaos import EXIT_CODE

PATIENCE_S = 60


@asynccontextmanager
async def living(host: EngineHost) -> AsyncIterator[protocol.Session]:
    """A host to its end, which what is told to go wrong brings about."""
    session = protocol.Session(host)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            session.ready = await nursery.start(host.run, session.hear)
            yield session


async def read_and_answer(host: EngineHost) -> list[FromEngine]:
    """What an engine says that reads a prompt of two chunks and a half and answers it, as far as it comes."""
    async with living(host) as session:
        session.open(Seq(1))
        session.step(read=Seq(1))
    return session.facts


DEATHS = {
    "raise": EngineDied("RuntimeError: it was told to", 1, exit_code=1),
    "refuse memory": EngineDied("MemoryError: it was told to", 1, exit_code=1),
    "exit": EngineDied(f"its process ended with exit code {EXIT_CODE}", 1, exit_code=EXIT_CODE),
    "kill": EngineDied(
        "its process was killed by SIGKILL, as the system does when memory runs out", 1, signal="SIGKILL"
    ),
    "stop": EngineDied("no progress for 1 s", 1, signal="SIGKILL"),
    "hang": EngineDied("no progress for 1 s", 1, signal="SIGKILL"),
}


@pytest.mark.parametrize("does", DEATHS)
async def test_an_engine_in_a_process_dies_where_it_is_told_to(does: str) -> None:
    """B34, B35: in the place of the second chunk's end; all that came before was said, and nothing after."""
    spec = chaotic(TOY, Mishap(does=does, at="ChunkRead", nth=2))
    facts = await read_and_answer(ProcessHost(spec, settings=HostSettings(watchdog_floor_s=1.0)))
    assert [fact for fact in facts if isinstance(fact, ChunkRead)] == [ChunkRead(Seq(1), 64, facts[3].seconds)]
    death = facts[-1]
    assert isinstance(death, EngineDied)
    told = DEATHS[does]
    assert (death.reason, death.last_step, death.exit_code, death.signal) == (
        told.reason,
        told.last_step,
        told.exit_code,
        told.signal,
    )


async def test_an_engine_on_a_thread_dies_at_a_message_before_it_obeys() -> None:
    host = ThreadHost(lambda: ChaosEngine(toy(), Mishap(does="raise", at="Open")))
    assert await read_and_answer(host) == [EngineDied("RuntimeError: it was told to")]


async def test_what_is_told_to_be_slow_takes_its_time_and_is_no_hang() -> None:
    """B34: all is said in the end."""
    spec = chaotic(TOY, Mishap(does="slow", at="Progress", onwards=True, seconds=0.1))
    async with living(ProcessHost(spec, settings=HostSettings(watchdog_floor_s=2.0))) as session:
        session.open(Seq(1))
        began = trio.current_time()
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
        session.tell(Stop())
    assert trio.current_time() - began >= 0.1 * sum(isinstance(fact, Progress) for fact in session.facts) > 0.4
    assert session.facts[-1] == Stopped()


@pytest.mark.parametrize("make", [ThreadHost, ProcessHost])
async def test_a_row_that_fails_is_the_end_of_its_sequence_alone(make: type[ThreadHost] | type[ProcessHost]) -> None:
    """B33: the others' tokens are what they would have been, and nothing of the failed one stays."""
    mishap = Mishap(does="fail row", at="Decoded", nth=4)
    alone = [await protocol.undisturbed(toy_on_thread, Seq(seq), prompt=32) for seq in (1, 2)]
    host = ThreadHost(lambda: ChaosEngine(toy(), mishap)) if make is ThreadHost else ProcessHost(chaotic(TOY, mishap))
    async with living(host) as session:
        for seq in (Seq(1), Seq(2)):
            # Its pages hold it after the first token.
            session.open(seq, prompt=32, hold=32)
            session.step(read=seq)
            await session.until(Wants(seq))
        for seq in (Seq(1), Seq(2)):
            session.grant(seq, protocol.ANSWER)
        session.step(Seq(1), Seq(2))
        await session.until_ended(Seq(2))
        session.tell(Stop())
    assert session.about(Seq(1))[-1] == SeqFailed(Seq(1), "it was told to")
    assert Closed(Seq(1)) not in session.facts
    assert session.tokens(Seq(1)) == alone[0][:2]
    assert session.tokens(Seq(2)) == alone[1]


def toy_on_thread() -> EngineHost:
    return ThreadHost(toy)


# -- a host -----------------------------------------------------------------------------------------------------------


def scripted(*mishaps: Mishap) -> ChaosHost:
    engine = ScriptedEngine(pages=80, page_tokens=16, chunk_tokens=64, slices_per_chunk=4, slots=40, strict=False)
    return ChaosHost(engine, *mishaps)


@pytest.mark.parametrize("holds", protocol.ALL, ids=lambda holds: holds.__name__)
async def test_where_nothing_goes_wrong_a_wrapped_host_is_as_it_was(holds, autojump_clock: MockClock) -> None:
    await holds(partial(scripted, Mishap(does="hang", at="Ready", nth=9)))


async def test_a_host_that_hangs_says_nothing_more_and_ends_when_it_is_cancelled(autojump_clock: MockClock) -> None:
    host = scripted(Mishap(does="hang", at="Decoded", nth=3))
    session = protocol.Session(host)
    with trio.move_on_after(1000):
        async with trio.open_nursery() as nursery:
            session.ready = await nursery.start(host.run, session.hear)
            session.open(Seq(1))
            session.step(read=Seq(1))
            await session.until_written(Seq(1), 2)
            await trio.sleep(100)
            session.tell(Stop())
    assert len([fact for fact in session.facts if isinstance(fact, Decoded)]) == 2
    assert Stopped() not in session.facts


async def test_a_host_can_be_made_to_raise_at_a_message(autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="it was told to")):
        await read_and_answer(scripted(Mishap(does="raise", at="Grant")))


async def test_a_process_is_killed_from_outside_in_the_call_in_which_a_fact_is_heard() -> None:
    host = ChaosHost(ProcessHost(TOY), Mishap(does="kill", at="Took"))
    facts = await read_and_answer(host)
    assert facts[0] == Took(1)
    assert isinstance(facts[-1], EngineDied)
    assert facts[-1].signal == "SIGKILL"


def test_what_can_not_happen_is_refused() -> None:
    with pytest.raises(ValueError, match="only of a Decoded"):
        Mishap(does="fail row", at="Took")
    with pytest.raises(ValueError, match="not between a host and its server: slow"):
        scripted(Mishap(does="slow"))
    host = scripted(Mishap(does="kill"))
    assert isinstance(host.tokenizer.encode("a"), list | tuple)
    with pytest.raises(ValueError, match="has no process"):
        host.tell(Stop())
