"""An answer between its writer and its reader."""

import pytest
import trio

from strata.actors.stream import Feed, Stream
from strata.errors import RequestCancelled
from strata.messages import Delta, Figures, Summary

FIGURES = Figures(state="done", prompt_tokens=1, read_tokens=1, written_tokens=2)
END = Summary("stop", FIGURES)


def answer() -> tuple[Feed, Stream]:
    feed = Feed()
    return feed, Stream("request-1", feed, lambda: FIGURES)


async def test_a_batch_is_all_that_is_ready_and_the_summary_is_its_last() -> None:
    feed, stream = answer()
    feed.push(Delta("a"))
    feed.push(Delta("b"))
    assert await stream.batch() == [Delta("a"), Delta("b")]
    assert stream.summary is None
    feed.push(Delta("c"))
    feed.complete(END)
    assert await stream.batch() == [Delta("c"), END]
    assert stream.summary == END
    assert await stream.batch() == []


async def test_a_reader_that_waits_is_woken_once_for_all_that_is_ready(autojump_clock: trio.abc.Clock) -> None:
    feed, stream = answer()
    batches = []

    async def read() -> None:
        while batch := await stream.batch():
            batches.append(batch)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        feed.push(Delta("a"))
        feed.push(Delta("b"))
        feed.complete(END)
    assert batches == [[Delta("a"), Delta("b"), END]]


async def test_the_iterator_gives_each_delta_and_ends_at_the_summary() -> None:
    feed, stream = answer()
    for letter in "abc":
        feed.push(Delta(letter))
    feed.complete(END)
    assert [delta.text async for delta in stream] == ["a", "b", "c"]
    assert stream.summary == END


async def test_batches_and_iteration_may_be_mixed() -> None:
    feed, stream = answer()
    feed.push(Delta("a"))
    feed.push(Delta("b"))
    assert await anext(stream) == Delta("a")
    assert await stream.batch() == [Delta("b")]
    feed.push(Delta("c"))
    feed.complete(END)
    assert await stream.text() == "c"


async def test_an_error_comes_after_what_was_ready_and_every_time_from_then_on() -> None:
    """B56: never a silent cut."""
    feed, stream = answer()
    feed.push(Delta("a"))
    feed.fail(RequestCancelled("admin"))
    assert await stream.batch() == [Delta("a")]
    for _ in range(2):
        with pytest.raises(RequestCancelled, match="admin"):
            await stream.batch()
    with pytest.raises(RequestCancelled):
        await anext(stream)


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_an_answer_ends_once(end: str) -> None:
    feed, _ = answer()
    feed.complete(END)
    with pytest.raises(RuntimeError, match="ended already"):
        feed.complete(END) if end == "complete" else feed.fail(RequestCancelled("admin"))
    with pytest.raises(RuntimeError, match="ended already"):
        feed.push(Delta("late"))


async def test_reading_is_a_checkpoint_also_when_something_is_ready() -> None:
    feed, stream = answer()
    feed.push(Delta("a"))
    with trio.CancelScope() as scope:
        scope.cancel()
        await stream.batch()
    assert scope.cancelled_caught
    assert await stream.batch() == [Delta("a")]
