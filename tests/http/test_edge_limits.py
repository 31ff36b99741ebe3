"""What one request may cost: bytes, time, and patience with a client that doesn't read."""

from __future__ import annotations

import math
import socket

import pytest
import trio
import trio.testing
from edge_support import H2Client, Running, receive_all, receive_until, running
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

HOST = b"Host: a\r\n"
POST_ECHO = b"POST /echo HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
KIB = {"max_body_mib": 1 / 1024}


async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent() -> None:
    """B68: 413 in the API's shape, and no `100 Continue` that would ask for it."""
    async with running(**KIB) as server:
        client = await server.connect()
        await client.send_all(POST_ECHO + b"Expect: 100-continue\r\nContent-Length: 1025\r\n\r\n")
        answered = await receive_all(client)
        assert answered.startswith(b"HTTP/1.1 413")
        assert b'"code":"body_too_large"' in answered
        assert server.told.counts["echo began"] == 0


async def test_a_body_of_just_the_limit_is_taken() -> None:
    async with running(**KIB) as server:
        client = await server.connect()
        await client.send_all(POST_ECHO + b"Content-Length: 1024\r\n\r\n" + b"x" * 1024)
        await receive_until(client, b"\r\n\r\n" + b"x" * 1024)


async def test_a_chunked_upload_is_cut_off_when_it_passes_the_limit() -> None:
    """B68: counted as it arrives; the client reads why, although it goes on sending."""
    async with running(**KIB) as server:
        client = await server.connect()
        await client.send_all(POST_ECHO + CHUNKED + b"400\r\n" + b"x" * 1024 + b"\r\n")
        await server.told.wait("echo began")
        await client.send_all(b"1\r\nx\r\n")
        await server.told.wait("echo cancelled")
        for _ in range(20):
            await client.send_all(b"400\r\n" + b"x" * 1024 + b"\r\n")
        await client.send_eof()
        answered = await receive_all(client)
        assert answered.startswith(b"HTTP/1.1 413")
        assert b'"code":"body_too_large"' in answered
        assert not answered.endswith(b"<reset>")
        await server.hello()


async def test_an_upload_over_http2_is_cut_off_when_it_passes_the_limit() -> None:
    """B68: its stream ends, and is reset so that the client stops; the connection lives on."""
    async with running(allow_h2c=True, **KIB) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/echo", method=b"POST", body=True)
        client.h2.send_data(stream_id, b"x" * 1025)
        await client.flush()
        await client.until(lambda: stream_id in client.reset)
        assert client.status[stream_id] == 413
        assert client.reset[stream_id] == ErrorCodes.NO_ERROR
        announced = await client.request(b"/echo", method=b"POST", body=True, more=[(b"content-length", b"2000")])
        await client.until(lambda: announced in client.ended)
        assert client.status[announced] == 413
        assert await client.answer(b"/hello") == (200, b"hello")


@pytest.mark.parametrize("framing", [b"Content-Length: 9\r\n\r\nx", CHUNKED + b"1\r\nx\r\n"])
async def test_a_body_that_does_not_come_is_given_up(framing: bytes) -> None:
    """B68: 408 after `body_timeout_s`; whatever trickles in meanwhile buys no time."""
    async with running(body_timeout_s=0.2) as server:
        client = await server.connect()
        await client.send_all(POST_ECHO + framing)
        answered = await receive_all(client)
        assert answered.startswith(b"HTTP/1.1 408")
        assert b'"timeout_error"' in answered
        assert server.told.counts["echo cancelled"] == 1


async def test_a_body_that_does_not_come_over_http2_is_given_up() -> None:
    """B68: the same, for its stream alone."""
    async with running(body_timeout_s=0.2, allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/echo", method=b"POST", body=True)
        await client.until(lambda: stream_id in client.ended)
        assert client.status[stream_id] == 408
        assert await client.answer(b"/hello") == (200, b"hello")


async def test_an_answer_takes_as_long_as_it_likes() -> None:
    """The time for the body ends with the body."""
    async with running(body_timeout_s=0.05, keep_alive_s=0.05) as server:
        client = await server.connect()
        await client.send_all(POST_ECHO.replace(b"echo", b"until-go") + b"Content-Length: 1\r\n\r\nx")
        await server.told.wait("until-go began")
        # Another connection's idle end shows that the time has passed.
        assert await receive_all(await server.connect()) == b""
        server.app.config["GO"].set()
        await receive_until(client, b"gone")


async def test_a_head_that_does_not_come_is_given_up() -> None:
    """B68: a request line and headers, sent slowly."""
    async with running(body_timeout_s=0.1, keep_alive_s=0.1) as server:
        client = await server.connect()
        await client.send_all(b"GET /hello HTTP/1.1\r\nX-Slow: ")
        assert await receive_all(client) in (b"", b"<reset>")


@pytest.mark.parametrize("over", ["http1", "http2"])
async def test_a_head_that_trickles_is_given_up(over: str, mock_clock: trio.testing.MockClock) -> None:
    """B68: its time counts from its first byte, whatever comes after it."""
    async with running(limit_s=math.inf, body_timeout_s=10, keep_alive_s=10, allow_h2c=True) as server:
        client = await server.connect()
        head = b"GET /hello HTTP/1.1\r\nHost: a\r\nX-Slow: "
        if over == "http2":
            # An unfinished frame of headers, after a beginning that is whole.
            h2 = await H2Client.over(client)
            await h2.read()
            head = b"\0\x10\0\x01\0\0\0\0\x01"
        began = trio.current_time()
        await client.send_all(head)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(3)
            await client.send_all(b"x")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.autojump_threshold = 0.05
        await receive_all(client)
        assert began + 9 < trio.current_time() < began + 13


async def test_a_head_that_comes_in_pieces_is_served() -> None:
    """B68: in several, and again on the same connection, each head with a time of its own."""
    async with running() as server:
        client = await server.connect()
        for _ in range(3):
            for piece in (b"GET /hel", b"lo HTTP/1.1\r\nHo", b"st: a\r\n", b"\r\n"):
                await client.send_all(piece)
            await receive_until(client, b"hello")


async def test_a_head_without_end_is_refused() -> None:
    """B68: 431 at 16 KiB."""
    async with running() as server:
        client = await server.connect()
        await client.send_all(b"GET /hello HTTP/1.1\r\nX-Long: " + b"x" * 40000)
        assert (await receive_all(client)).startswith(b"HTTP/1.1 431")


class Stalled:
    """A client that asked for a flood, and reads of it only what it is told to."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.h2 = H2Client(stream)
        self._over = ""

    @classmethod
    async def ask(cls, server: Running, over: str) -> Stalled:
        self = cls(await server.connect())
        self._over = over
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        if over == "http1":
            await self.stream.send_all(b"GET /flood HTTP/1.1\r\n" + HOST + b"\r\n")
            return self
        self.h2 = await H2Client.over(self.stream)
        if over == "http2, its socket full":
            self.h2.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
            self.h2.h2.increment_flow_control_window(2**30)
        await self.h2.request(b"/flood")
        return self

    async def read(self, size: int) -> None:
        if self._over == "http1":
            while size > 0:
                size -= len(await self.stream.receive_some())
        else:
            await self.h2.until(lambda: len(self.h2.data[1]) >= size)
            self.h2.data[1] = b""


STALLS = ["http1", "http2, its window closed", "http2, its socket full"]


@pytest.mark.parametrize("over", STALLS)
async def test_a_client_that_reads_nothing_is_dropped(over: str) -> None:
    """B27: after `stall_timeout_s`, and no other is slowed meanwhile."""
    async with running(stall_timeout_s=0.3, allow_h2c=True) as server:
        await Stalled.ask(server, over)
        await server.told.wait("flood wrote")
        await server.hello()
        await server.told.wait("flood cancelled")
        written = server.told.counts["flood wrote"] * 16384
        assert written < 4 * 2**20
        await server.hello()


@pytest.mark.parametrize("over", STALLS)
async def test_a_client_that_reads_nothing_does_not_hold_up_an_end(over: str) -> None:
    """B27: its handler is cancelled at once when the server ends, and within 0.2 s when it is cut alone."""
    async with running(limit_s=5, drain_timeout_s=0.1, allow_h2c=True) as server:
        await Stalled.ask(server, over)
        await server.told.wait("flood wrote", 2)
        server.stop.set()
        await server.ended.wait()
        assert server.told.counts["flood cancelled"] == 1


@pytest.mark.parametrize("over", STALLS)
async def test_a_client_that_reads_nothing_and_leaves_is_noticed(over: str) -> None:
    """B21: while a write to it is blocked."""
    async with running(allow_h2c=True) as server:
        client = await Stalled.ask(server, over)
        await server.told.wait("flood wrote", 2)
        await client.stream.aclose()
        await server.told.wait("flood cancelled")


@pytest.mark.parametrize("over", STALLS)
async def test_a_slow_reader_that_goes_on_reading_is_not_dropped(over: str, mock_clock: trio.testing.MockClock) -> None:
    """B27: the limit is on taking nothing, not on being slow."""
    async with running(limit_s=math.inf, stall_timeout_s=30, allow_h2c=True) as server:
        client = await Stalled.ask(server, over)
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(25)
            await trio.testing.wait_all_tasks_blocked()
            await client.read(64 * 1024)
        assert server.told.counts["flood cancelled"] == 0
        # It took something within the first of these, and nothing within the second.
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(31)
        await server.told.wait("flood cancelled")


async def test_many_stalled_readers_slow_nobody() -> None:
    """B27: 64 of them, and the server still answers within the second."""
    async with running() as server:
        for _ in range(64):
            await Stalled.ask(server, "http1")
        await server.told.wait("flood began", 64)
        with trio.fail_after(2):
            await server.hello()
        assert server.told.counts["flood cancelled"] == 0
