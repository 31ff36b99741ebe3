"""What goes wrong, and who hears of it.  Nobody waits for ever, and nobody else is touched."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from scripted_runtime import CHUNK, Scene, read_some, scripted
from toy_model import ToyModel
from trio.testing import MockClock

from strata.config import EngineSettings
from strata.engine.budget import Budget
from strata.engine.engine import Engine
from strata.engine.host import ThreadHost
from strata.errors import (
    EngineUnavailable,
    InternalError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    SequenceFailed,
    ShuttingDown,
    StrataError,
)
from strata.messages import ChunkRead, Seq
from strata.runtime import open_runtime
from strata.testing.language import ByteTokenizer, PlainTemplate
from strata.testing.script import Fault, RowFault, Script
from strata.testing.scripted import ScriptedEngine

LONG = 16 * CHUNK


def engine(**named: Any) -> ScriptedEngine:
    return ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=4, pages=256, page_tokens=16, **named)


async def the_error(
    scene: Scene, name: str, tokens: int, max_tokens: int, errors: dict[str, Exception], priority: int = 0
) -> None:
    try:
        await scene.ask(name, tokens, max_tokens, priority=priority)
    except StrataError as error:
        errors[name] = error


async def test_an_error_in_one_sequence_fails_that_request_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B33: its reader gets an id that is in the log."""
    errors: dict[str, Exception] = {}
    async with scripted(engine(faults=[RowFault(seq=2, index=3, error="bad state")])) as scene:
        async with trio.open_nursery() as nursery:
            for name in ("before", "victim", "after"):
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(the_error, scene, name, 40, 10, errors)
        assert errors.keys() == {"victim"}
        assert isinstance(errors["victim"], SequenceFailed)
        told = re.fullmatch(r"bad state; the log has it as (err-\w+)", str(errors["victim"]))
        assert told is not None
        assert f"{told[1]}: the engine could not go on with request-2: bad state" in caplog.text
        assert scene.runtime.health().ready
        assert scene.is_empty()
        assert scene.runtime.actor("request-2").outcome == f"failed: {errors['victim']}"


@pytest.mark.parametrize("does", ["die", "raise", "vanish"])
async def test_when_the_engine_dies_everybody_is_told_and_nobody_hangs(does: Any, autojump_clock: MockClock) -> None:
    """B35: one queued, one that reads, one parked, one that decodes; there is no second engine yet."""
    errors: dict[str, Exception] = {}
    faults = [Fault(does=does, slice=24)]
    async with scripted(engine(faults=faults), max_running=2, max_priority=1) as scene:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(the_error, scene, "decodes", 40, 100, errors, 1)
            await trio.sleep(0.04)
            for name, priority in (("parked", 0), ("reads", 1), ("queued", 0)):
                nursery.start_soon(the_error, scene, name, LONG, 10, errors, priority)
                await trio.sleep(0.05)
            now = scene.runtime.statistics()
            assert (now.decoding, now.parked, now.reading, now.queued) == (1, 1, 1, 1)
            assert errors == {}
        assert errors.keys() == {"decodes", "parked", "reads", "queued"}
        assert all(isinstance(error, EngineUnavailable) for error in errors.values())
        assert not scene.runtime.health().ready
        assert scene.runtime.health().state == "failed"
        assert "the engine died" in await scene.runtime.wait_failed()
        with pytest.raises(EngineUnavailable):
            async with scene.chat("late", 40, 2):
                pass
        assert scene.runtime.statistics().pages_held == 0
        assert [info.kind for info in scene.runtime.tree() if info.kind == "request"] == []


async def test_an_engine_that_hangs_holds_nobody_who_leaves(autojump_clock: MockClock) -> None:
    """Leaving never waits for the engine."""
    async with scripted(engine(faults=[Fault(does="hang", slice=3)])) as scene:
        async with scene.chat("leaves", LONG, 2):
            await trio.sleep(5)
            left = trio.current_time()
        assert trio.current_time() == left
        assert scene.runtime.statistics().pages_held == 0


# -- bugs of ours ---------------------------------------------------------------------------------------------------


class FaultyTokenizer(ByteTokenizer):
    """Fails where it is told to: a bug that a request actor meets."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if "can't be encoded" in text:
            raise ZeroDivisionError("a secret of the prompt")
        return super().encode(text, special=special)

    def token_bytes(self, token: int, /) -> bytes:
        if token == ord("#"):
            raise ZeroDivisionError("a bug")
        return super().token_bytes(token)


def faulty() -> ScriptedEngine:
    host = engine(script=Script(by_text={"victim": "fine so far # but not here and on and on"}))
    host.tokenizer = FaultyTokenizer()
    return host


async def test_a_bug_in_a_request_s_actor_fails_its_stream_and_no_other(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B35: the reader gets an id that is in the log beside where it happened; the sequence is withdrawn.

    B65: but not what the error says, which may quote a prompt.
    """
    errors: dict[str, Exception] = {}
    async with scripted(faulty()) as scene:
        async with trio.open_nursery() as nursery:
            for name in ("before", "victim", "after"):
                nursery.start_soon(the_error, scene, name, 60, 50, errors)
        assert errors.keys() == {"victim"}
        error = errors["victim"]
        assert isinstance(error, InternalError)
        records = [record for record in caplog.records if error.error_id in record.getMessage()]
        assert len(records) == 1
        assert records[0].levelno == logging.ERROR
        assert "ZeroDivisionError" in records[0].getMessage()
        assert "in token_bytes" in records[0].getMessage()
        assert "a bug" not in caplog.text.replace('raise ZeroDivisionError("a bug")', "")
        assert scene.is_empty()
        assert scene.engine.open_sequences == 0
        assert scene.runtime.health().ready


async def test_a_bug_before_a_request_is_queued_is_raised_where_it_enters(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B35"""
    async with scripted(faulty()) as scene:
        with pytest.raises(InternalError) as caught:
            async with scene.chat("can't be encoded", 60, 5):
                pass
        assert caught.value.error_id in caplog.text
        assert "secret" not in str(caught.value)
        assert scene.is_empty()


class LyingEngine(ScriptedEngine):
    """Says things that no engine says, so that the dispatcher meets a bug."""

    async def run(self, deliver: Any, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lie, deliver)
            await super().run(deliver, task_status=task_status)
            nursery.cancel_scope.cancel()

    async def _lie(self, deliver: Any) -> None:
        await trio.sleep(0.1)
        position: Any = "not a position"
        deliver(ChunkRead(Seq(1), position, 0.0))


async def test_when_the_dispatcher_fails_everybody_is_told_and_nobody_hangs(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B35: also one that is only being tokenised, and one that comes later; the engine works for nobody any more.

    B65: the log says where it happened, and not what the error says.
    """
    errors: dict[str, Exception] = {}
    host = LyingEngine(chunk_tokens=CHUNK, slices_per_chunk=4, pages=256, page_tokens=16)
    async with scripted(host, max_running=1) as scene:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(the_error, scene, "reads", LONG, 10, errors)
            await trio.sleep(0.05)
            nursery.start_soon(the_error, scene, "queued", LONG, 10, errors)
            await trio.sleep(0.049999)
            nursery.start_soon(the_error, scene, "arrives", LONG, 10, errors)
        assert errors.keys() == {"reads", "queued", "arrives"}
        assert all(isinstance(error, InternalError | EngineUnavailable) for error in errors.values())
        assert isinstance(errors["reads"], InternalError)
        assert errors["reads"].error_id in caplog.text
        assert "in chunk_read" in caplog.text
        assert "not a position" not in caplog.text
        assert "the dispatcher failed" in await scene.runtime.wait_failed()
        now = scene.runtime.statistics()
        assert (now.queued, now.reading, now.parked, now.decoding, now.pages_held) == (0, 0, 0, 0, 0)
        assert now.pages_free == 256
        assert set(scene.runtime.snapshot().requests.values()) == {0}
        assert not scene.runtime.health().ready
        with pytest.raises(EngineUnavailable):
            async with scene.chat("late", 40, 2):
                pass
        await trio.sleep(1)
        assert [info.kind for info in scene.runtime.tree()] == ["runtime"]


# -- refusals -------------------------------------------------------------------------------------------------------


async def test_what_is_refused_leaves_no_trace_and_the_next_is_served(autojump_clock: MockClock) -> None:
    """B11: as if it had not come."""
    async with scripted(engine(context=500)) as scene:
        for refused in (
            {"name": "too long", "tokens": 600, "max_tokens": 1},
            {"name": "too much", "tokens": 400, "max_tokens": 101},
        ):
            with pytest.raises(PromptTooLong, match="500"):
                async with scene.chat(**refused):
                    pass
        with pytest.raises(ModelNotFound):
            async with scene.chat("other", 40, 2, model="other"):
                pass
        with pytest.raises(InvalidRequest, match="priority"):
            async with scene.chat("urgent", 40, 2, priority=1):
                pass
        assert scene.engine.told == []
        await scene.ask("next", 400, 100)
        assert scene.is_empty()


async def test_a_prompt_that_the_pages_can_t_hold_is_refused_naming_both_sizes(autojump_clock: MockClock) -> None:
    """B11: the engine has fewer pages than its context."""
    host = ScriptedEngine(chunk_tokens=CHUNK, pages=10, page_tokens=16, context=1000)
    async with scripted(host) as scene:
        with pytest.raises(PromptTooLong) as caught:
            async with scene.chat("too large", 200, 10):
                pass
        assert caught.value.limit == 160
        await scene.ask("fits", 140, 10)


async def test_a_full_queue_refuses_with_a_time_to_come_again(autojump_clock: MockClock) -> None:
    """B62: as far as the runtime goes."""
    async with scripted(max_running=1, max_queued=2) as scene, trio.open_nursery() as nursery:
        for name in ("runs", "waits", "waits too"):
            nursery.start_soon(scene.ask, name, LONG, 2)
            await trio.sleep(0.001)
        with pytest.raises(Overloaded) as caught:
            async with scene.chat("one too many", LONG, 2):
                pass
        assert caught.value.retry_after_s > 0
    assert len(scene.ended) == 3


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content"),
        ([{"role": "user", "content": "x", "name": 7}], "messages[0].name"),
    ],
)
async def test_messages_of_the_wrong_kind_are_refused_by_their_place(
    messages: Sequence[dict[str, Any]], param: str, autojump_clock: MockClock
) -> None:
    async with scripted() as scene:
        with pytest.raises(InvalidRequest) as caught:
            async with scene.runtime.chat(messages):
                pass
        assert caught.value.param == param


# -- ending ---------------------------------------------------------------------------------------------------------


async def test_draining_ends_the_queued_and_lets_the_started_finish(autojump_clock: MockClock) -> None:
    errors: dict[str, Exception] = {}
    async with scripted(max_running=1) as scene, trio.open_nursery() as nursery:
        for name in ("runs", "waits"):
            nursery.start_soon(the_error, scene, name, LONG, 2, errors)
            await trio.sleep(0.001)
        scene.runtime.drain()
        assert scene.runtime.health().state == "draining"
        with pytest.raises(ShuttingDown):
            async with scene.chat("late", 40, 2):
                pass
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(errors["waits"], ShuttingDown)
        await scene.runtime.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert scene.ended == ["runs"]


async def test_leaving_the_runtime_gives_every_open_stream_its_end(autojump_clock: MockClock) -> None:
    """B42: also those that tasks outside of the block hold."""
    errors: dict[str, Exception] = {}
    async with trio.open_nursery() as outside, scripted(max_running=1) as scene:
        for name in ("reads", "queued"):
            outside.start_soon(the_error, scene, name, LONG, 2, errors)
            await trio.sleep(0.01)
    assert errors.keys() == {"reads", "queued"}
    assert all(isinstance(error, ShuttingDown) for error in errors.values())
    with pytest.raises(ShuttingDown):
        async with scene.chat("late", 40, 2):
            pass


@pytest.mark.parametrize("round", range(8))
async def test_cancelling_everything_around_the_runtime_ends_it_in_order(round: int, autojump_clock: MockClock) -> None:
    """B42: the reader's block is left before the runtime's, and the pages are back by then.

    Several times, because Trio runs what is ready in a random order.
    """
    held: list[int] = []
    with trio.move_on_after(0.1) as scope:
        async with scripted() as scene:
            try:
                async with scene.chat("cut short", LONG, 2):
                    await trio.sleep_forever()
            finally:
                held.append(scene.runtime.statistics().pages_held)
    assert scope.cancelled_caught
    assert held == [0]
    assert [info.kind for info in scene.runtime.tree()] == ["runtime"]


class Hanging(ToyModel):
    """Its first slice hangs until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def slices(self, *known: int) -> int:
        self.begun.set()
        self.go_on.wait(60)
        return super().slices(*known)


class ToyTokenizer(ByteTokenizer):
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [3 for _ in super().encode(text, special=special)]


class SpeakingThread(ThreadHost):
    tokenizer = ToyTokenizer()
    template = PlainTemplate()


REAL_S = 0.05
"""For so long nothing must happen before time jumps: a thread that works is nothing that the clock knows of."""


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_runtime_whose_engine_hangs_is_left_all_the_same(
    cancelled: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B42: it waits as long as it said it would, also when everything around it is cancelled."""
    autojump_clock.autojump_threshold = REAL_S
    model = Hanging()
    chosen = EngineSettings(chunk_tokens=CHUNK, page_tokens=16)
    host = SpeakingThread(lambda: Engine(model, chosen, Budget(pages=96, page_tokens=16, context=1024, rows=8)))
    with trio.CancelScope() as around:
        async with open_runtime(host=host, chunk_tokens=CHUNK) as runtime:
            with trio.move_on_after(1):
                async with runtime.chat([{"role": "user", "content": "x"}], max_tokens=3):
                    await trio.to_thread.run_sync(model.begun.wait)
                    await trio.sleep_forever()
            left = trio.current_time()
            if cancelled:
                around.cancel()
    assert trio.current_time() - left == pytest.approx(15, abs=1)
    assert "is left behind" in caplog.text
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "strata-engine-1")
    model.go_on.set()
    await trio.to_thread.run_sync(thread.join)
    assert model.closed


async def test_an_engine_that_hangs_on_its_thread_ends_the_runtime(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B34: it can't be killed, and no other is started beside it; all are told, and why."""
    autojump_clock.autojump_threshold = REAL_S
    model, made = Hanging(), list[int]()
    chosen = EngineSettings(chunk_tokens=CHUNK, page_tokens=16)

    def make(incarnation: int) -> ThreadHost:
        made.append(incarnation)
        budget = Budget(pages=96, page_tokens=16, context=1024, rows=8)
        return SpeakingThread(lambda: Engine(model, chosen, budget), incarnation=incarnation, watchdog_floor_s=30)

    async with open_runtime(host=make, chunk_tokens=CHUNK) as runtime:
        with pytest.raises(EngineUnavailable, match="no progress"):
            async with runtime.chat([{"role": "user", "content": "x"}], max_tokens=3) as stream:
                await stream.text()
        assert "hangs on its thread" in await runtime.wait_failed()
        assert runtime.health().state == "failed"
    assert made == [1]
    model.go_on.set()
    for thread in threading.enumerate():
        if thread.name == "strata-engine-1":
            await trio.to_thread.run_sync(thread.join)


async def test_an_error_in_the_user_s_block_comes_out_as_itself(autojump_clock: MockClock) -> None:
    """B42: not in a group, and everything is withdrawn."""
    with pytest.raises(KeyError, match="mine"):
        await _raise_inside(KeyError("mine"))


async def _raise_inside(error: Exception) -> None:
    async with scripted() as scene, scene.chat("cut short", LONG, 2) as stream:
        await trio.sleep(0.02)
        assert stream.figures().state == "reading"
        raise error


@asynccontextmanager
async def _stream(scene: Scene) -> AsyncIterator[Any]:
    async with scene.runtime.chat([{"role": "user", "content": "x"}], max_tokens=20) as stream:
        yield stream


async def test_two_streams_of_one_task_may_be_left_in_any_order(autojump_clock: MockClock) -> None:
    async with scripted() as scene:
        async with _stream(scene) as one:
            await read_some(one, 2)
            async with _stream(scene) as other:
                assert len(await other.text()) == 20
            assert len(await one.text()) == 18
        assert scene.is_empty()
