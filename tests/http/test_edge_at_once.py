"""The short way of a body's parts past h11: what arrives is the same, byte for byte, and only where it can be."""

from __future__ import annotations

import itertools
import select
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from edge_support import TLS, H2Client, Told, make_app, receive_all, receive_until, running
from quart_trio import QuartTrio

from strata.http.pump import PumpResponse, Writer

PARTS = [b"one", b"", b"two\r\n", b"0\r\n\r\n", bytes(range(256)), b"x" * 70_000]
WRITERS = 4


def app_with_parts() -> QuartTrio:
    app = make_app(Told())

    @app.route("/parts/<int:status>/<int:length>", methods=["GET", "HEAD", "POST"])
    async def parts(status: int, length: int) -> PumpResponse:
        async def pump(write: Writer) -> None:
            for part in PARTS:
                await write(part)

        return PumpResponse(pump, status=status, headers={"content-length": str(length)} if length else {})

    return app


def wrapped(app: Any) -> Any:
    """A user's middleware: all that the app sends goes through its hands."""

    async def wrapper(scope: Any, receive: Any, send: Any) -> None:
        async def send_on(message: Any) -> None:
            await send(message)

        await app(scope, receive, send_on)

    return wrapper


async def answered(app: Any, request: bytes) -> bytes:
    """All that comes of this request, without the line that says when."""
    async with running(app=app) as server:
        client = await server.connect()
        await client.send_all(request)
        lines = (await receive_all(client)).split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.startswith(b"date:"))


WHOLE = sum(len(part) for part in PARTS)


@pytest.mark.parametrize("status", [200, 204, 304, 404])
@pytest.mark.parametrize(
    ("method", "version", "length"),
    list(itertools.product(("GET", "HEAD"), ("1.0", "1.1"), (0, WHOLE, WHOLE - 1))),
)
async def test_the_bytes_are_those_that_h11_would_send(method: str, version: str, length: int, status: int) -> None:
    head = f"{method} /parts/{status}/{length} HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
    app = app_with_parts()
    assert await answered(app, head.encode()) == await answered(wrapped(app), head.encode())


async def test_a_connection_is_good_for_the_next_request() -> None:
    """h11 ends a body of which it has not heard, and keeps the connection."""
    async with running(app=app_with_parts()) as server:
        client = await server.connect()
        for _ in range(3):
            await client.send_all(b"GET /parts/200/0 HTTP/1.1\r\nHost: a\r\n\r\n")
            await receive_until(client, b"x" * 70_000 + b"\r\n0\r\n\r\n")
            await client.send_all(b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n")
            await receive_until(client, b"\r\n\r\nhello")


Handler = Callable[[Any], Awaitable[None]]


def answering(handler: Handler, headers: Sequence[tuple[bytes, bytes]] = ()) -> Any:
    """An ASGI app without a framework, whose answer's parts are the handler's."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": message["type"] + ".complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await handler(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


@pytest.mark.parametrize("way", ["chunks", "content-length", "tls", "http2"])
async def test_a_part_is_sent_in_the_call_where_it_can_be(way: str) -> None:
    head_read, seen = trio.Event(), []
    client: Any = None

    async def look(send: Any) -> None:
        await head_read.wait()
        rest = send.body_at_once(b"now")
        socket = getattr(client, "transport_stream", client).socket
        seen.append(bool(select.select([socket.fileno()], [], [], 0)[0]))
        assert (rest is None) is (way == "chunks")
        if rest is not None:
            await rest

    headers = [(b"content-length", b"3")] if way == "content-length" else []
    options: dict[str, Any] = {"tls": TLS} if way == "tls" else {"allow_h2c": True}
    async with running(app=answering(look, headers), **options) as server:
        client = await (server.connect_tls("http/1.1") if way == "tls" else server.connect())
        if way == "http2":
            h2 = await H2Client.over(client)
            stream_id = await h2.request(b"/")
            await h2.until(lambda: stream_id in h2.status)
            head_read.set()
            await h2.until(lambda: stream_id in h2.ended)
            assert h2.data[stream_id] == b"now"
        else:
            await client.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await receive_until(client, b"\r\n\r\n")
            head_read.set()
            await receive_until(client, b"now")
    assert seen == [way == "chunks"]


async def write_part(send: Any, n: int) -> None:
    rest = send.body_at_once(b"%d" % n * 2**19)
    assert rest is not None
    await rest


async def test_parts_that_several_tasks_send_are_whole_each() -> None:
    """More than the kernel takes: each comes after what others were writing when it came."""

    async def write(send: Any) -> None:
        async with trio.open_nursery() as nursery:
            for n in range(WRITERS):
                nursery.start_soon(write_part, send, n)

    async with running(app=answering(write)) as server:
        client = await server.connect()
        await client.send_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        body = (await receive_all(client)).partition(b"\r\n\r\n")[2]
    framed = 2**19 + len(b"80000\r\n\r\n")
    chunks = [body[start : start + framed] for start in range(0, WRITERS * framed, framed)]
    assert sorted(chunks) == [b"80000\r\n" + b"%d" % n * 2**19 + b"\r\n" for n in range(WRITERS)]
    assert body[WRITERS * framed :] == b"0\r\n\r\n"


async def test_a_part_after_the_client_left_goes_nowhere() -> None:
    left = trio.Event()

    async def write(send: Any) -> None:
        try:
            await left.wait()
        finally:
            with trio.CancelScope(shield=True):
                await send.body_at_once(b"late")
                left.set()

    async with running(app=answering(write)) as server:
        client = await server.connect()
        await client.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await receive_until(client, b"\r\n\r\n")
        await client.send_eof()
        assert await receive_all(client) == b""
        await left.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert [access.status for access in server.accesses] == [499]
