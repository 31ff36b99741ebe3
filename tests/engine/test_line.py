"""The line to a process loses and reorders nothing, never blocks, and holds no more than it may."""

from __future__ import annotations

import socket

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from strata.engine.last_words import KEPT_BYTES, LONGEST_LINE, LastWords, level_of
from strata.engine.line import Line
from strata.engine.wire import Frames, encode
from strata.messages import Open, Sampling, Seq, Step, Took

LONG = Open(Seq(1), tuple(range(1 << 17)), Sampling())


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    with near, far:
        yield near, far


async def test_what_the_socket_does_not_take_at_once_comes_later_and_in_order(ends) -> None:
    near, far = ends
    line = Line(near, 1 << 24)
    sent = [Step(1), LONG, Step(2), LONG, *(Step(n) for n in range(3, 50))]
    frames, came = Frames(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.keep_sending)
        for message in sent:
            line.tell(message)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(far.dup()))
        async with stream:
            while len(came) < len(sent):
                frames.feed(bytes(await stream.receive_some()))
                while (message := frames.take()) is not None:
                    came.append(message)
        line.tell(Step(50))
        nursery.cancel_scope.cancel()
    assert came == sent
    assert "0 bytes wait" in repr(line)


async def test_more_than_may_wait_does_not(ends) -> None:
    line = Line(ends[0], 1 << 20)
    while not line.overfull:
        line.tell(LONG)
    before = repr(line)
    for _ in range(100):
        line.tell(LONG)
    assert repr(line) == before
    with trio.fail_after(10):
        await line.keep_sending()


async def test_what_is_told_to_nobody_is_dropped(ends) -> None:
    near, far = ends
    line = Line(near, 1 << 20)
    far.close()
    for _ in range(3):
        line.tell(LONG)
    assert "0 bytes wait" in repr(line)
    assert await line.receive() == []


async def test_messages_come_as_they_were_cut_from_the_stream(ends) -> None:
    near, far = ends
    line = Line(near, 1 << 20)
    whole = encode(Took(1)) + encode(Took(2)) + encode(Took(3))
    async with trio.open_nursery() as nursery:
        came = []

        async def hear() -> None:
            while messages := await line.receive():
                came.append(messages)

        nursery.start_soon(hear)
        for part in (whole[:3], whole[3:-4], whole[-4:]):
            far.sendall(part)
            await trio.testing.wait_all_tasks_blocked()
        far.close()
    assert came == [[Took(1), Took(2)], [Took(3)]]


# -- last words -------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=3 * LONGEST_LINE), max_size=8))
def test_of_all_that_is_written_the_end_is_kept_and_every_whole_line_passed_on(parts: list[bytes]) -> None:
    words = LastWords()
    lines = [line for part in parts for line in words.feed(part)]
    whole = b"".join(parts)
    assert whole.decode("utf-8", "replace").strip().endswith(words.text[-20:])
    assert len(words.text.encode("utf-8", "replace")) <= 3 * KEPT_BYTES
    assert all(line.strip() and len(line) <= LONGEST_LINE for line in lines)
    ended = whole[: whole.rfind(b"\n") + 1].decode("utf-8", "replace")
    assert len("".join("".join(lines).split())) >= len("".join(ended.split())) - len(parts)


def test_the_level_of_a_line_is_its_own_or_a_warning() -> None:
    assert level_of("CRITICAL it died") == (50, "it died")
    assert level_of("free(): invalid pointer") == (30, "free(): invalid pointer")
    words = LastWords()
    assert words.feed(b"INFO one\ntw") == ["INFO one"]
    assert words.feed(b"o\n\n") == ["two"]
    assert words.text == "INFO one\ntwo"
