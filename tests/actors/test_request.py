"""One request's actor by itself: what it tells the dispatcher, when, and what its reader gets."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define

from strata.actors.dispatcher import Enlist
from strata.actors.kernel import Mailbox, Ref, Registry, open_supervisor
from strata.actors.prompt import Language
from strata.actors.request import RequestActor
from strata.config import RequestSettings
from strata.errors import InternalError, Overloaded, RequestCancelled, ShuttingDown
from strata.messages import (
    Accepted,
    Cancelled,
    ChatMessage,
    Completed,
    Ended,
    Figures,
    Refused,
    Request,
    Row,
    Seq,
    Tokens,
    Withdraw,
)
from strata.testing.language import ByteTokenizer, PlainTemplate

SEQ = Seq(7)
FIGURES = Figures(state="done", prompt_tokens=5, read_tokens=5, written_tokens=9)


class SlowTokenizer(ByteTokenizer):
    """Takes until it is let go on, on whatever thread it is called."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.threads: list[int] = []

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        self.threads.append(threading.get_ident())
        self.may_go_on.wait(10)
        return super().encode(text, special=special)


@define
class Bench:
    actor: RequestActor
    dispatcher: Mailbox[Any]
    left: list[float]

    async def told(self) -> Any:
        return await self.dispatcher.receive()

    def tells(self, *messages: Any) -> None:
        for message in messages:
            self.actor.ref.tell(message)


@asynccontextmanager
async def requested(
    tokenizer: ByteTokenizer | None = None, *, quick: bool = True, arrived: float = 3.5, **named: Any
) -> AsyncIterator[Bench]:
    dispatcher: Mailbox[Any] = Mailbox()
    left: list[float] = []
    language = Language(
        tokenizer=tokenizer or ByteTokenizer(),
        template=PlainTemplate(),
        context=1000,
        names=frozenset({"default"}),
        quick_characters=1000 if quick else 0,
    )
    actor = RequestActor(
        SEQ,
        Request(messages=(ChatMessage("user", "hello"),), **named),
        arrived=arrived,
        language=language,
        settings=RequestSettings(),
        limiter=trio.CapacityLimiter(1),
        dispatcher=Ref("dispatcher", dispatcher),
        figures=lambda _seq: None,
        left=left.append,
    )
    async with open_supervisor(Registry()) as supervisor:
        supervisor.spawn(actor, on_failure=lambda _info, _error: None)
        yield Bench(actor, dispatcher, left)


def rows(text: str) -> Tokens:
    return Tokens(SEQ, tuple(Row(SEQ, byte) for byte in text.encode()))


async def test_its_place_in_the_queue_is_when_it_came_and_not_when_it_was_tokenised() -> None:
    """B03: a long text is tokenised on a thread, and the loop goes on."""
    tokenizer = SlowTokenizer()
    async with requested(tokenizer, quick=False, arrived=3.5) as bench:
        while not tokenizer.threads:
            await trio.sleep(0.001)
        assert bench.dispatcher.depth == 0
        assert tokenizer.threads != [threading.get_ident()]
        tokenizer.may_go_on.set()
        enlist = await bench.told()
        assert isinstance(enlist, Enlist)
        assert enlist.submit.arrived == 3.5
        bench.actor.withdraw("client")
        bench.tells(Ended(SEQ, Cancelled("client"), FIGURES))


async def test_one_that_leaves_while_it_is_tokenised_is_never_submitted_and_waits_for_nothing() -> None:
    """B25"""
    tokenizer = SlowTokenizer()
    try:
        async with requested(tokenizer, quick=False) as bench:
            while not tokenizer.threads:
                await trio.sleep(0.001)
            bench.actor.withdraw("client")
            await bench.actor.wait_ended()
            assert not tokenizer.may_go_on.is_set()
            assert bench.dispatcher.depth == 0
            assert len(bench.left) == 1
            with pytest.raises(RequestCancelled, match="client"):
                await bench.actor.stream.batch()
    finally:
        tokenizer.may_go_on.set()


class WhenScheduled(trio.abc.Instrument):
    """Calls back when one task is about to run again, before it does."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        if task.name == self._name:
            self._call()


async def test_one_that_leaves_in_the_tick_in_which_its_thread_ends_is_never_submitted() -> None:
    """B25: between the thread's last word and the turn of the task that waits for it."""
    tokenizer = SlowTokenizer()
    async with requested(tokenizer, quick=False) as bench:
        while not tokenizer.threads:
            await trio.sleep(0.001)
        leaves = WhenScheduled(bench.actor.id, lambda: bench.actor.withdraw("client"))
        trio.lowlevel.add_instrument(leaves)
        tokenizer.may_go_on.set()
        with trio.fail_after(10):
            await bench.actor.wait_ended()
        trio.lowlevel.remove_instrument(leaves)
        assert bench.dispatcher.depth == 0
        assert len(bench.left) == 1
        with pytest.raises(RequestCancelled, match="client"):
            await bench.actor.stream.batch()


async def test_it_is_admitted_when_the_dispatcher_says_so_and_refused_with_its_error() -> None:
    async with requested() as bench:
        await bench.told()
        bench.tells(Accepted(SEQ))
        await bench.actor.admitted()
        bench.tells(Ended(SEQ, Completed("stop"), FIGURES))
    async with requested() as bench:
        await bench.told()
        bench.tells(Refused(SEQ, Overloaded("full", retry_after_s=9)))
        with pytest.raises(Overloaded):
            await bench.actor.admitted()
        await bench.actor.wait_ended()
        assert bench.actor.over


async def test_all_that_is_there_becomes_one_delta() -> None:
    async with requested() as bench:
        await bench.told()
        bench.tells(Accepted(SEQ), rows("a"), rows("bc"), rows("d"), Ended(SEQ, Completed("length"), FIGURES))
        delta, summary = await bench.actor.stream.batch()
        assert (delta.text, delta.tokens) == ("abcd", 4)
        assert (summary.finish_reason, summary.figures) == ("length", FIGURES)
        assert bench.actor.figures() == FIGURES


async def test_a_stop_string_withdraws_it_once_and_only_the_tokens_up_to_it_count() -> None:
    """B51: those that were decoded after it are dropped."""
    async with requested(stop=("END",)) as bench:
        await bench.told()
        bench.tells(Accepted(SEQ), rows("one EN"))
        assert (await bench.actor.stream.batch())[0].text == "one "
        bench.tells(rows("D and more"))
        assert await bench.told() == Withdraw(SEQ, "stop string")
        bench.tells(rows("END"), Ended(SEQ, Completed("stop"), FIGURES))
        (summary,) = await bench.actor.stream.batch()
        assert summary.finish_reason == "stop"
        assert summary.figures.written_tokens == len("one END")
        assert bench.dispatcher.depth == 0


async def test_a_stop_string_beside_the_end_needs_no_withdrawal() -> None:
    async with requested(stop=("END",)) as bench:
        await bench.told()
        bench.tells(Accepted(SEQ), rows("one END"), Ended(SEQ, Completed("length"), FIGURES))
        delta, summary = await bench.actor.stream.batch()
        assert (delta.text, summary.finish_reason) == ("one ", "stop")
        await bench.actor.wait_ended()
        assert bench.dispatcher.depth == 0


async def test_it_is_withdrawn_once_and_its_task_ends_when_nothing_of_it_is_left() -> None:
    async with requested() as bench:
        await bench.told()
        bench.tells(Accepted(SEQ))
        await bench.actor.admitted()
        bench.actor.withdraw("client")
        bench.actor.withdraw("admin")
        assert await bench.told() == Withdraw(SEQ, "client")
        await trio.testing.wait_all_tasks_blocked()
        assert bench.dispatcher.depth == 0
        assert not bench.actor.over
        bench.tells(Ended(SEQ, Cancelled("client"), FIGURES))
        await bench.actor.wait_ended()
        assert len(bench.left) == 1
        bench.actor.withdraw("client")
        assert bench.dispatcher.depth == 0


async def test_a_shutdown_is_told_as_one() -> None:
    async with requested() as bench:
        await bench.told()
        bench.tells(Accepted(SEQ), Ended(SEQ, Cancelled("shutdown"), FIGURES))
        with pytest.raises(ShuttingDown):
            await bench.actor.stream.text()


async def test_stopped_from_outside_it_withdraws_itself_and_its_reader_gets_an_end() -> None:
    """B35: nobody waits for an actor that is gone."""
    async with requested() as bench:
        await bench.told()
        bench.tells(Accepted(SEQ), rows("a"))
        await bench.actor.admitted()
        bench.actor.stop()
        await bench.actor.wait_ended()
        assert await bench.told() == Withdraw(SEQ, "shutdown")
        assert (await bench.actor.stream.batch())[0].text == "a"
        with pytest.raises(ShuttingDown):
            await bench.actor.stream.batch()


async def test_a_bug_withdraws_it_and_waits_until_nothing_of_it_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """B35: token 300 is no byte."""
    async with requested() as bench:
        await bench.told()
        bench.tells(Accepted(SEQ), Tokens(SEQ, (Row(SEQ, 300),)))
        with pytest.raises(InternalError) as caught:
            await bench.actor.stream.batch()
        assert caught.value.error_id in caplog.text
        assert await bench.told() == Withdraw(SEQ, "internal error")
        await trio.testing.wait_all_tasks_blocked()
        assert not bench.actor.state.over
        bench.tells(rows("more"), Ended(SEQ, Cancelled("internal error"), FIGURES))
        await bench.actor.wait_ended()
        assert bench.actor.state == "failed"
