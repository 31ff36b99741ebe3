"""What one client once did to all the others: each fault by name, with a healthy stream beside it that goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from edge_support import TLS, H2Client, Running, Told, receive_all, receive_until, running
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame, PriorityFrame

from strata.http.exchange import Access
from strata.http.protocols import MAX_DROPPED_BYTES, MAX_PIPELINED_BYTES

HOST = b"Host: a\r\n"


@asynccontextmanager
async def beside_a_stream(**named: Any) -> AsyncIterator[Running]:
    """A server with an open stream, which must still be open at the end; then it is let go, and must end whole."""
    async with running(**named) as server:
        healthy = await server.connect()
        await healthy.send_all(b"GET /until-go HTTP/1.1\r\n" + HOST + b"\r\n")
        await server.told.wait("until-go began")
        yield server
        await server.hello()
        server.app.config["GO"].set()
        assert (await receive_until(healthy, b"gone")).startswith(b"HTTP/1.1 200")
        assert server.told.counts["until-go cancelled"] == 0


async def test_http2_data_after_an_early_response_hurts_nobody() -> None:
    """B66: the answer came before the body was whole; the rest is dropped, and the stream reset without error."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/early", method=b"POST", body=True)
        await client.until(lambda: stream_id in client.reset)
        assert stream_id in client.ended
        await client.stream.send_all(DataFrame(stream_id, b"late").serialize() * 3)
        assert client.reset[stream_id] == ErrorCodes.NO_ERROR
        assert await client.answer(b"/hello") == (200, b"hello")


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (b"/caf\xc3\xa9", b"GET"),
        (b"/x?q=\xff", b"GET"),
        (b"no-slash", b"GET"),
        (b"*", b"OPTIONS"),
        (b"/a b", b"GET"),
        (b"/hello", b"\xff"),
        (b"/hello", b"G T"),
    ],
)
async def test_a_path_that_is_none_is_refused_alone(path: bytes, method: bytes) -> None:
    """B66: a non-ASCII `:path` costs that stream a 400, and neither its connection nor the server anything."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        waiting = await client.request(b"/wait")
        status, body = await client.answer(path, method=method)
        assert status == 400
        assert b'"invalid_request_error"' in body
        assert waiting not in client.ended | set(client.reset)
        assert await client.answer(b"/hello") == (200, b"hello")


async def test_a_refused_request_that_is_reset_in_the_same_read_hurts_no_other() -> None:
    """B66: there is nobody left to be told that it was refused."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        waiting = await client.request(b"/wait")
        client.h2.send_headers(3, client.head(b"not-a-path"), end_stream=True)
        client.h2.reset_stream(3)
        await client.flush()
        assert await client.answer(b"/hello") == (200, b"hello")
        assert waiting not in client.reset


async def test_connect_without_a_path_is_refused() -> None:
    """B66: CONNECT has no `:path`; it isn't served, over HTTP/2 nor HTTP/1.1."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        stream_id = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream_id, [(b":method", b"CONNECT"), (b":authority", b"a:1")])
        await client.flush()
        await client.until(lambda: stream_id in client.ended)
        assert client.status[stream_id] == 405
        plain = await server.connect()
        await plain.send_all(b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\nstray")
        assert (await receive_all(plain)).startswith(b"HTTP/1.1 405")


async def test_an_extended_connect_is_refused() -> None:
    """B66: a WebSocket over HTTP/2 is not served, and not announced."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        more = [(b":protocol", b"websocket")]
        status, _ = await client.answer(b"/hello", method=b"CONNECT", more=more)
        assert status == 405
        assert client.h2.remote_settings.enable_connect_protocol == 0


async def test_a_flood_of_priority_frames_ends_its_own_connection() -> None:
    """B66: over a thousand PRIORITY frames; the client is told to calm down."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        frames = b"".join(
            PriorityFrame(stream_id=n, depends_on=0, stream_weight=1).serialize() for n in range(1, 4001, 2)
        )
        await client.stream.send_all(frames)
        while await client.read():
            pass
        assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_few_hundred_priority_frames_are_ignored() -> None:
    """B66: what browsers send costs nothing."""
    async with running(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        frames = [PriorityFrame(stream_id=n, depends_on=0, stream_weight=9).serialize() for n in range(1, 801, 2)]
        await client.stream.send_all(b"".join(frames))
        assert await client.answer(b"/hello") == (200, b"hello")


async def test_opening_and_resetting_streams_ends_its_own_connection() -> None:
    """B66: the cheapest flood of all (CVE-2023-44487)."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        for stream_id in range(1, 500, 2):
            client.h2.send_headers(stream_id, client.head(b"/wait"), end_stream=True)
            client.h2.reset_stream(stream_id)
        await client.flush()
        while await client.read():
            pass
        assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM


async def test_a_websocket_upgrade_with_a_stray_byte_hurts_nobody() -> None:
    """B66: the upgrade is ignored, and the request answered as the plain one it also is."""
    upgrade = (
        b"GET /hello HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with beside_a_stream() as server:
        client = await server.connect()
        await client.send_all(upgrade + b"\x81")
        assert (await receive_until(client, b"hello")).startswith(b"HTTP/1.1 200")
        await client.send_all(b"\r\n\r\n")
        assert (await receive_all(client)).startswith(b"HTTP/1.1 400")


async def test_an_h2c_upgrade_is_answered_in_http1() -> None:
    """B66: HTTP/2 without TLS comes neither by an upgrade nor unasked."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    async with beside_a_stream() as server:
        client = await server.connect()
        request = b"POST /echo HTTP/1.1\r\n" + HOST + upgrade + b"Content-Length: 4\r\n\r\nbody"
        for _ in range(2):
            await client.send_all(request)
            assert (await receive_until(client, b"body")).startswith(b"HTTP/1.1 200")
        await client.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await receive_all(client)).startswith(b"HTTP/1.1 400")


async def test_http2_does_not_begin_on_a_connection_that_spoke_http1() -> None:
    async with beside_a_stream(allow_h2c=True) as server:
        client = await server.connect()
        await client.send_all(b"GET /hello HTTP/1.1\r\n" + HOST + b"\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        answered = await receive_all(client)
        assert answered.count(b"HTTP/1.1") == 2
        assert b"HTTP/1.1 400" in answered


@pytest.mark.parametrize("version", [b"2.0", b"3.0", b"0.9", b"9.1"])
async def test_a_version_that_is_not_spoken_here_is_refused(version: bytes) -> None:
    """B66: 505, and the connection ends; a later minor version of HTTP/1 is as good as 1.1."""
    async with beside_a_stream() as server:
        client = await server.connect()
        await client.send_all(b"GET /hello HTTP/" + version + b"\r\n" + HOST + b"\r\n")
        answered = await receive_all(client)
        assert answered.startswith(b"HTTP/1.1 505")
        assert b'"http_version"' in answered
        client = await server.connect()
        await client.send_all(b"GET /hello HTTP/1.7\r\n" + HOST + b"\r\n")
        assert (await receive_until(client, b"hello")).startswith(b"HTTP/1.1 200")


async def test_pipelined_requests_are_answered_in_order() -> None:
    """B66: those that wait behind a running answer are kept, and come after it."""
    async with beside_a_stream() as server:
        client = await server.connect()
        echo = b"POST /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\n"
        await client.send_all(b"".join(echo + b"%04d" % n for n in range(50)))
        got = await receive_until(client, b"0049")
        assert [int(part[:4]) for part in got.split(b"\r\n\r\n")[1:]] == list(range(50))


async def test_stray_line_breaks_between_requests_are_skipped() -> None:
    """B66: with the body, after it, and split; the connection lives on."""
    async with beside_a_stream() as server:
        client = await server.connect()
        echo = b"POST /echo HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\n\r\n"
        for before, after in [(b"", b"\r\n"), (b"\r\n", b"\r"), (b"\n", b""), (b"\r\n\r\n", b"\r\n\r\n")]:
            await client.send_all(before + echo + b"body" + after)
            assert (await receive_until(client, b"body")).startswith(b"HTTP/1.1 200")


async def test_what_is_pipelined_beyond_64_kib_is_not_answered_and_what_came_before_is() -> None:
    """B68: at most 64 KiB are held of what comes during an answer, which is given and says that it is the last."""
    async with running() as server:
        client = await server.connect()
        await client.send_all(b"GET /until-go HTTP/1.1\r\n" + HOST + b"\r\n")
        await server.told.wait("until-go began")
        await client.send_all((b"GET /hello HTTP/1.1\r\n" + HOST + b"\r\n") * 3000)
        await trio.testing.wait_all_tasks_blocked(0.05)
        server.app.config["GO"].set()
        answered = await receive_all(client)
        assert answered.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answered.lower()
        assert answered.endswith(b"gone")


async def test_a_client_that_pipelines_without_end_is_cut_off() -> None:
    """B68: what is thrown away is counted too."""
    async with beside_a_stream() as server:
        client = await server.connect()
        await client.send_all(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        await server.told.wait("wait began")
        with suppress(trio.BrokenResourceError):
            await client.send_all(b"x" * (MAX_PIPELINED_BYTES + MAX_DROPPED_BYTES + 1))
        await server.told.wait("wait cancelled")
        assert await receive_all(client) in (b"", b"<reset>")


async def test_an_app_that_fails_is_answered_for_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """B35: before the first byte 500 in the API's shape; after it the connection is cut, never ended as if whole."""

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise NotImplementedError
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("a secret")

    with caplog.at_level(logging.INFO):
        async with running(app=failing) as server:
            early = await server.connect()
            await early.send_all(b"GET /early HTTP/1.1\r\n" + HOST + b"\r\n")
            answered = await receive_all(early)
            assert answered.startswith(b"HTTP/1.1 500")
            assert b'"internal_error"' in answered
            late = await server.connect()
            await late.send_all(b"GET /late HTTP/1.1\r\n" + HOST + b"\r\n")
            answered = await receive_all(late)
            assert b"half" in answered
            assert not answered.endswith(b"0\r\n\r\n")
    assert "ValueError" in caplog.text
    assert "a secret'" not in caplog.text


async def test_a_failure_of_ours_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """B66: whatever is raised outside of an app's call; here, by who keeps the log."""

    def failing(access: Access) -> None:
        if access.scope["path"] == "/wait":
            raise ValueError("a secret")

    async with beside_a_stream(on_access=failing) as server:
        client = await server.connect()
        await client.send_all(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        await server.told.wait("wait began")
        await client.send_eof()
        assert await receive_all(client) in (b"", b"<reset>")
    assert "ValueError" in caplog.text


async def test_a_handler_that_fails_while_it_is_cancelled_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """B35: by a client that leaves, and by the server's end; both are seen in the log, and nowhere else."""
    told = Told()

    async def clumsy() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("a secret")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clumsy)
                told("began")
                await trio.sleep_forever()

    async with running(app=app) as server:
        leaver, stayer = await server.connect(), await server.connect()
        for client in (leaver, stayer):
            await client.send_all(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await told.wait("began", 2)
        await leaver.aclose()
        while not server.accesses:
            await trio.lowlevel.checkpoint()
        assert not server.ended.is_set()
    assert caplog.text.count("ValueError at") == 2
    assert "a secret'" not in caplog.text


async def test_an_interrupt_is_not_held_back() -> None:
    """B41: Ctrl-C within a handler ends the server's nursery like anywhere else."""

    async def interrupted(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(app=interrupted) as server:
            client = await server.connect()
            await client.send_all(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
            await trio.sleep_forever()
    assert caught.group_contains(KeyboardInterrupt)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_an_http2_stream_whose_app_fails_is_reset(tls: bool) -> None:
    """B56: half an answer is not taken for a whole one, and no client waits for the rest."""
    async with running(**({"tls": TLS} if tls else {"allow_h2c": True})) as server:
        client = await H2Client.over(await (server.connect_tls("h2") if tls else server.connect()))
        stream_id = await client.request(b"/boom")
        await client.until(lambda: stream_id in client.reset)
        assert stream_id not in client.ended
        assert client.data[stream_id] in (b"", b"data: half\n\n")
        assert await client.answer(b"/hello") == (200, b"hello")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_nonsense_ends_its_own_connection(tls: bool) -> None:
    """B66: what is no HTTP at all, and no TLS."""
    async with beside_tls_or_plain(tls) as server:
        for nonsense in (
            b"\x16\x03\x01\x02\x00\x01",
            b"\0" * 100,
            b"GET\r\n\r\n",
            b"\r\n" * 50 + b"?",
            b"\xff" * 70000,
        ):
            client = await server.connect()
            await client.send_all(nonsense)
            with suppress(trio.BrokenResourceError):
                await client.send_eof()
            await receive_all(client)


@asynccontextmanager
async def beside_tls_or_plain(tls: bool) -> AsyncIterator[Running]:
    if not tls:
        async with beside_a_stream() as server:
            yield server
        return
    async with running(tls=TLS) as server:
        yield server
        client = await H2Client.over(await server.connect_tls("h2", "http/1.1"))
        assert await client.answer(b"/hello") == (200, b"hello")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ([(b":method", b"GET")], b""),
        ([*H2Client.head(b"/hello"), (b"X-Upper", b"1")], b""),
        ([*H2Client.head(b"/hello"), (b"connection", b"close")], b""),
        ([*H2Client.head(b"/echo", b"POST"), (b"content-length", b"5")], b"four"),
    ],
)
async def test_a_malformed_request_over_http2_ends_its_connection_and_says_why(head: Any, body: bytes) -> None:
    """RFC 9113, 5.4.1 lets a server take a stream's error for the connection's, as the library does; others go on."""
    async with beside_a_stream(allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        await client.request(b"/wait")
        await server.told.wait("wait began")
        stream_id = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream_id, head, end_stream=not body)
        if body:
            client.h2.send_data(stream_id, body, end_stream=True)
        await client.flush()
        while await client.read():
            pass
        assert client.goodbye == ErrorCodes.PROTOCOL_ERROR
        await server.told.wait("wait cancelled")
