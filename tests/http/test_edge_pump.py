"""Pumped responses: when they start, what they may become, and that no byte of them is lost or torn."""

from __future__ import annotations

import select
from typing import Any

import pytest
import trio
from edge_support import TLS, H2Client, Running, Told, make_app, receive_all, receive_until, running
from quart import Response
from quart_trio import QuartTrio

from strata.errors import Overloaded
from strata.http.pump import Pump, PumpResponse, Writer

HOST = b"Host: a\r\n"


def app_with(pump: Pump) -> QuartTrio:
    app = make_app(Told())

    @app.get("/pumped")
    async def pumped() -> PumpResponse:
        return PumpResponse(pump)

    return app


async def get(server: Running, path: bytes = b"/pumped", method: bytes = b"GET") -> bytes:
    client = await server.connect()
    await client.send_all(method + b" " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    return await receive_all(client)


def body_of(answered: bytes) -> bytes:
    """Undo the chunks.  Fails where the last one is missing."""
    head, _, rest = answered.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        chunk, end, rest = rest[: int(size, 16)], rest[int(size, 16) :][:2], rest[int(size, 16) + 2 :]
        assert end == b"\r\n"
        if not chunk:
            assert not rest
            return body
        body += chunk


async def test_the_status_line_goes_out_with_the_first_write() -> None:
    go = trio.Event()

    async def pump(write: Writer) -> None:
        await go.wait()
        await write(b"now")

    async with running(app=app_with(pump)) as server:
        client = await server.connect()
        await client.send_all(b"GET /pumped HTTP/1.1\r\n" + HOST + b"\r\n")
        await server.hello()
        assert select.select([client.socket.fileno()], [], [], 0) == ([], [], [])
        go.set()
        answered = await receive_until(client, b"now")
        assert answered.startswith(b"HTTP/1.1 200")
        assert b"content-type: text/event-stream; charset=utf-8\r\n" in answered
        assert b"cache-control: no-store\r\n" in answered
        assert b"x-accel-buffering: no\r\n" in answered


async def test_a_pump_may_answer_something_else_before_its_first_write() -> None:
    async def pump(_write: Writer) -> Any:
        return Response("busy", 429)

    async with running(app=app_with(pump)) as server:
        answered = await get(server)
        assert answered.startswith(b"HTTP/1.1 429")
        assert answered.endswith(b"busy")


async def test_an_error_before_the_first_write_is_answered_by_the_table() -> None:
    """B62: admission happens inside the pump, and 429 with `Retry-After` is still possible there."""

    async def pump(_write: Writer) -> None:
        raise Overloaded("the queue is full", retry_after_s=7)

    async with running(app=app_with(pump)) as server:
        answered = await get(server)
        assert answered.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 7\r\n" in answered
        assert b'"type":"overloaded"' in answered


async def test_an_error_after_the_first_write_cuts_the_stream() -> None:
    """B56: never as if all were well."""
    async with running() as server:
        answered = await get(server, b"/boom")
        assert b"half" in answered
        assert not answered.endswith(b"0\r\n\r\n")


async def test_a_pump_that_writes_nothing_sends_an_empty_body() -> None:
    async def pump(_write: Writer) -> None:
        await trio.lowlevel.checkpoint()

    async with running(app=app_with(pump)) as server:
        assert body_of(await get(server)) == b""


async def test_a_head_request_gets_no_body() -> None:
    async with running() as server:
        answered = await get(server, b"/count/3", b"HEAD")
        assert answered.startswith(b"HTTP/1.1 200")
        assert answered.endswith(b"\r\n\r\n")


async def test_tasks_that_write_first_at_once_send_one_status_line() -> None:
    async def pump(write: Writer) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(write, b"%d\n" % n)

    async with running(app=app_with(pump)) as server:
        answered = await get(server)
        assert answered.count(b"HTTP/1.1 200") == 1
        assert sorted(body_of(answered).split()) == [b"%d" % n for n in range(8)]


async def torn_by_cancels(write: Writer) -> None:
    """One task writes numbers; beside it, beats begin, block, and are cancelled at every moment."""

    async def beat(scope: trio.CancelScope) -> None:
        with scope:
            await write(b"beat" * 5000 + b"\n")

    async with trio.open_nursery() as nursery:
        for n in range(300):
            scope = trio.CancelScope()
            nursery.start_soon(beat, scope)
            if n % 3 == 0:
                scope.cancel()
            await write(b"%d\n" % n)
            scope.cancel()


@pytest.mark.parametrize("over", ["http1", "http1 in tls", "http2", "http2 in tls"])
async def test_a_cancelled_write_tears_no_stream(over: str) -> None:
    """B56: whoever is cancelled while it writes or waits to write, each write arrives whole or not at all, in order."""
    options: dict[str, Any] = {"tls": TLS} if "tls" in over else {"allow_h2c": True}
    async with running(app=app_with(torn_by_cancels), **options) as server:
        if over.startswith("http2"):
            stream: Any = await (server.connect_tls("h2") if "tls" in over else server.connect())
            client = await H2Client.over(stream)
            status, body = await client.answer(b"/pumped")
            assert status == 200
        else:
            stream = await (server.connect_tls("http/1.1") if "tls" in over else server.connect())
            await stream.send_all(b"GET /pumped HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
            body = body_of(await receive_all(stream))
        lines = body.splitlines()
        assert [line for line in lines if line.isdigit()] == [b"%d" % n for n in range(300)]
        assert {line for line in lines if not line.isdigit()} <= {b"beat" * 5000}


async def test_a_pump_that_never_waits_lets_others_run() -> None:
    """B66: a reader as fast as the writer doesn't have the loop to itself."""

    async def pump(write: Writer) -> None:
        while True:
            await write(b"y")

    async with running(app=app_with(pump)) as server:
        client = await server.connect()
        await client.send_all(b"GET /pumped HTTP/1.1\r\n" + HOST + b"\r\n")
        await receive_until(client, b"y")
        await server.hello()
