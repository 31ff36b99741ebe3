"""What is cheap to send and dear to read: how much of it a client may send, and that the others are served."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from edge_support import H2Client, receive_all, receive_until, running
from h2.errors import ErrorCodes
from h2.events import DataReceived, StreamEnded

from strata.config import ServeSettings
from strata.errors import StartError
from strata.http.exchange import FREE_PARTS, PART_BYTES, YIELD_AFTER, Exchanges, Limits
from strata.http.frames import MAX_IDLE_FRAMES, Frames
from strata.http.listener import listen

POST_ECHO = b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY = b"1\r\nx\r\n"
END = b"0\r\n\r\n"


def frame(kind: int, payload: bytes = b"", *, stream_id: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream_id.to_bytes(4, "big") + payload


OPEN_WINDOW = frame(8, b"\0\0\0\1")
UNKNOWN = frame(0x99)


async def test_a_body_in_too_many_tiny_chunks_is_refused() -> None:
    """B66: each chunk costs as much as hundreds of bytes, and the limit on a body's bytes counts none of that."""
    async with running() as server:
        client = await server.connect()
        await client.send_all(POST_ECHO + TINY * (FREE_PARTS + FREE_PARTS // PART_BYTES + 1))
        answered = await receive_until(client, b"}}")
        assert answered.startswith(b"HTTP/1.1 400")
        assert b'"code":"too_many_parts"' in answered
        assert b"connection: close" in answered
        assert server.told.counts["echo cancelled"] == 1


async def test_a_body_in_too_many_tiny_frames_is_refused() -> None:
    """B66: over HTTP/2 its stream alone ends."""
    async with running(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/echo", method=b"POST", body=True)
        for _ in range(FREE_PARTS + FREE_PARTS // PART_BYTES + 1):
            client.h2.send_data(stream_id, b"x")
        await client.flush()
        await client.until(lambda: stream_id in client.reset)
        assert client.status[stream_id] == 400
        assert await client.answer(b"/hello") == (200, b"hello")


async def test_ordinary_chunks_with_small_ones_among_them_are_taken() -> None:
    """B66: whatever their number."""
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    times = FREE_PARTS
    async with running(max_body_mib=5) as server:
        client = await server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, POST_ECHO + (chunk + TINY) * times + END)
            got = await receive_until(client, b"\r\n\r\n")
            while len(got.partition(b"\r\n\r\n")[2]) < times * 1025:
                got += await client.receive_some()
        assert got.startswith(b"HTTP/1.1 200")


async def test_a_connection_lets_others_run_while_parts_of_a_body_come() -> None:
    """B66: every few dozen parts, though nothing makes it wait; also once the answer is decided."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await trio.sleep_forever()

    async def send(_message: Any) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, Exchanges(Limits(FREE_PARTS, 10), None) as tasks:
        put = await tasks.spawn_app(app, None, {"http_version": "1.1"}, send)
        nursery.start_soon(count)
        for _ in range(2 * FREE_PARTS):
            await put({"type": "http.request", "body": b"x", "more_body": True})
        assert turns >= FREE_PARTS // YIELD_AFTER
        nursery.cancel_scope.cancel()


async def test_others_are_served_beside_a_flood_of_chunks() -> None:
    """B66: the requests are refused one after the other, and the flooder comes again each time."""

    async def flood() -> None:
        while True:
            client = await server.connect()
            await client.send_all(POST_ECHO + TINY * 4000)

    async with running() as server, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(flood)
        await server.told.wait("echo began", 4)
        for _ in range(5):
            await server.hello()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "sent", [OPEN_WINDOW, frame(8, b"\0\0\0\1", stream_id=1), UNKNOWN, frame(3, b"\0\0\0\x08", stream_id=1)]
)
async def test_frames_that_ask_for_nothing_end_their_own_connection(sent: bytes) -> None:
    """B66: also those that name a stream which has ended, of which the parser tells nothing."""
    async with running(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        assert await client.answer(b"/hello") == (200, b"hello")
        await client.stream.send_all(sent * (2 * MAX_IDLE_FRAMES))
        while await client.read():
            pass
        assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM
        await server.hello()


async def test_parts_of_a_body_that_nobody_waits_for_end_their_own_connection() -> None:
    """B66: its answer was given, its stream reset, and the client goes on."""
    async with running(allow_h2c=True, max_body_mib=1 / 1024) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/echo", method=b"POST", body=True, more=[(b"content-length", b"2000")])
        await client.until(lambda: stream_id in client.reset)
        await client.stream.send_all(frame(0, b"x", stream_id=stream_id) * (2 * MAX_IDLE_FRAMES))
        while await client.read():
            pass
        assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_client_that_opens_both_windows_for_each_frame_of_a_long_stream_reads_all_of_it() -> None:
    """B66: over a thousand updates that the answer warrants."""
    last = 3 * MAX_IDLE_FRAMES

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for word in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{word}.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(last):
            await send({"type": "http.response.body", "body": b"word", "more_body": True})
            # The sending task runs meanwhile, and makes a frame of it.
            await trio.testing.wait_all_tasks_blocked()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with running(app=app, allow_h2c=True, limit_s=30) as server:
        client = await H2Client.over(await server.connect())
        await client.request(b"/")
        frames, got, ended = 0, 0, False
        while not ended:
            read = await client.stream.receive_some()
            assert read, "the server closed the connection"
            for event in client.h2.receive_data(read):
                if isinstance(event, DataReceived) and event.data:
                    frames += 1
                    got += len(event.data)
                    client.h2.increment_flow_control_window(len(event.data))
                    client.h2.increment_flow_control_window(len(event.data), event.stream_id)
                ended = ended or isinstance(event, StreamEnded)
            await client.flush()
        assert got == 4 * last
        assert frames > MAX_IDLE_FRAMES


@pytest.mark.parametrize("piece", [1, 2, 8, 9, 10, 1000])
def test_frames_are_counted_however_their_bytes_come(piece: int) -> None:
    sent = b"preface" + frame(0, b"x" * 300) + UNKNOWN + OPEN_WINDOW
    frames = Frames(len(b"preface"))
    begun = [each for at in range(0, len(sent), piece) for each in frames.begun_in(sent[at : at + piece])]
    assert begun == [(0, 300), (0x99, 0), (8, 4)]


@pytest.mark.parametrize("order", [1, -1])
async def test_a_body_with_two_ends_is_refused(order: int) -> None:
    """B66: who stands between may have gone by the other one (RFC 9112, 6.1)."""
    both = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
    async with running() as server:
        client = await server.connect()
        head = b"POST /echo HTTP/1.1\r\nHost: a\r\n" + b"".join(both[::order]) + b"\r\n"
        await client.send_all(head + END + b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        answered = await receive_all(client)
        assert answered.startswith(b"HTTP/1.1 400")
        assert b'"code":"bad_framing"' in answered
        assert answered.count(b"HTTP/1.1") == 1


async def test_without_a_file_left_an_idle_connection_makes_room(caplog: pytest.LogCaptureFixture) -> None:
    """B66: the one that has been idle for longest, and nobody when nobody waits for a place."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running() as server:
        idle = await server.connect()
        await idle.send_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
        await receive_until(idle, b"hello")
        with socket.socket() as late:
            # The kernel takes it; the server hasn't run since.
            late.connect(("127.0.0.1", server.port))
            lowest = os.dup(late.fileno())
            os.close(lowest)
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
                late.setblocking(False)
                client = trio.SocketStream(trio.socket.from_stdlib_socket(late))
                await client.send_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
                await receive_until(client, b"hello")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await receive_all(idle) == b""
    assert "can't accept" not in caplog.text


def test_a_path_at_which_a_file_lies_is_said_to_be_no_socket(tmp_path: Path) -> None:
    """The file stays, and nobody is sent to look for what listens there."""
    there = tmp_path / "notes.txt"
    there.write_text("mine")
    with pytest.raises(StartError, match="what is there is not a socket") as raised:
        listen(ServeSettings(host=f"unix:{there}"))
    assert str(there) in str(raised.value)
    assert there.read_text() == "mine"
