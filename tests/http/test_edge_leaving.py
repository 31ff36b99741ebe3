"""A client leaves, in every way and at every moment; its handler is cancelled, without anybody asking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from edge_support import H2_WAYS, TLS, H2Client, h2_reset_stream, receive_until, reset, running

HOST = b"Host: a\r\n"
GET_WAIT = b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n"
POST_WAIT = b"POST /wait HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\nbody"
GET_STREAM = b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"

MOMENTS = {
    "before its first byte": ("wait", GET_WAIT),
    "while its prompt is read": ("wait", POST_WAIT),
    "streaming": ("stream", GET_STREAM),
    "uploading": ("echo", b"POST /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\nsome"),
    "uploading in chunks": ("echo", b"POST /echo HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n4\r\nsome"),
    "after a stray line break": ("wait", POST_WAIT + b"\r\n"),
    "after a pipelined request": ("wait", GET_WAIT + GET_STREAM),
    "streaming, with a pipelined request": ("stream", GET_STREAM + GET_WAIT),
    "after an h2c upgrade with a body": ("wait", POST_WAIT.replace(HOST, HOST + UPGRADE)),
    "after a websocket upgrade": (
        "wait",
        GET_WAIT.replace(HOST, HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"),
    ),
}


async def close(client: trio.SocketStream) -> None:
    await client.aclose()


async def break_off(client: trio.SocketStream) -> None:
    reset(client)


async def half_close(client: trio.SocketStream) -> None:
    await client.send_eof()


WAYS = [close, break_off, half_close]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("leave", WAYS)
async def test_a_client_that_leaves_is_noticed(leave: Callable[..., Any], moment: str) -> None:
    """B21: over HTTP/1.1, whatever it had sent and got by then."""
    handler, sent = MOMENTS[moment]
    async with running() as server:
        client = await server.connect()
        await client.send_all(sent)
        if handler == "stream":
            await receive_until(client, b"first")
        await server.told.wait(f"{handler} began")
        await leave(client)
        await server.told.wait(f"{handler} cancelled")
        await server.hello()
    assert server.accesses[0].status == 499


@pytest.mark.parametrize("leave", WAYS)
async def test_leaving_is_noticed_when_more_was_sent_during_the_answer(leave: Callable[..., Any]) -> None:
    """B21: bytes that come while the answer waits stop no reader."""
    async with running() as server:
        client = await server.connect()
        await client.send_all(GET_STREAM)
        await receive_until(client, b"first")
        for _ in range(3):
            await client.send_all(b"\r\n" + GET_WAIT * 100)
        await leave(client)
        await server.told.wait("stream cancelled")
        assert server.told.counts["wait began"] == 0


async def test_a_client_that_leaves_over_tls_is_noticed() -> None:
    """B21: HTTP/1.1 within TLS."""
    async with running(tls=TLS) as server:
        client = await server.connect_tls("http/1.1")
        await client.send_all(GET_STREAM)
        await receive_until(client, b"first")
        await client.aclose()
        await server.told.wait("stream cancelled")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("handler", ["wait", "stream", "echo"])
@pytest.mark.parametrize("leave", H2_WAYS)
async def test_a_client_that_leaves_over_http2_is_noticed(leave: Callable[..., Any], handler: str, tls: bool) -> None:
    """B21: waiting, streaming and uploading, over HTTP/2."""
    async with running(**({"tls": TLS} if tls else {"allow_h2c": True})) as server:
        client = await H2Client.over(await (server.connect_tls("h2") if tls else server.connect()))
        method = b"POST" if handler == "echo" else b"GET"
        stream_id = await client.request(b"/" + handler.encode(), method=method, body=handler == "echo")
        if handler == "stream":
            await client.until(lambda: client.data[stream_id])
        await server.told.wait(f"{handler} began")
        await leave(client, stream_id)
        await server.told.wait(f"{handler} cancelled")


async def test_one_stream_that_is_reset_leaves_the_others_of_its_connection() -> None:
    """B24: a client that withdraws one of two requests keeps the other."""
    async with running(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        gone, kept = await client.request(b"/wait"), await client.request(b"/until-go")
        await server.told.wait("wait began")
        await server.told.wait("until-go began")
        await h2_reset_stream(client, gone)
        await server.told.wait("wait cancelled")
        server.app.config["GO"].set()
        await client.until(lambda: kept in client.ended)
        assert client.data[kept] == b"gone"
        assert server.told.counts["until-go cancelled"] == 0


async def test_a_client_that_left_after_its_answer_is_no_leaver() -> None:
    """B67: the end of a connection whose answer is whole cancels nothing, and is logged with its status."""
    async with running() as server:
        client = await server.connect()
        await client.send_all(b"GET /hello HTTP/1.1\r\n" + HOST + b"\r\n")
        await receive_until(client, b"hello")
        await client.aclose()
        server.stop.set()
        await server.ended.wait()
    assert [access.status for access in server.accesses] == [200]
