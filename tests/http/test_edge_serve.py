"""The server's life: how it starts, whom it lets in, and how it ends."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from edge_support import CERTIFICATE, TLS, H2Client, Told, make_app, receive_all, receive_until, running

from strata.config import ServeSettings
from strata.errors import StartError
from strata.http.listener import listen
from strata.http.serving import Tls, serve

HOST = b"Host: a\r\n"
GET_HELLO = b"GET /hello HTTP/1.1\r\n" + HOST + b"\r\n"
GET_UNTIL_GO = b"GET /until-go HTTP/1.1\r\n" + HOST + b"\r\n"


async def test_a_server_tells_where_it_can_be_reached() -> None:
    async with running() as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        await server.hello()


async def test_a_server_listens_on_ipv6() -> None:
    async with running(host="::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        client = await trio.open_tcp_stream("::1", server.port)
        async with client:
            await client.send_all(GET_HELLO)
            await receive_until(client, b"hello")


async def test_a_server_listens_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "strata.sock"
    async with running(host=f"unix:{path}") as server:
        assert server.url == f"unix:{path}"
        async with await trio.open_unix_socket(path) as client:
            await client.send_all(GET_HELLO)
            await receive_until(client, b"hello")


async def test_a_server_takes_sockets_that_were_opened_before() -> None:
    sockets = listen(ServeSettings(port=0))
    port = sockets[0].getsockname()[1]
    async with running(sockets=sockets) as server:
        assert server.port == port
        await server.hello()


async def test_a_public_socket_without_a_key_refuses_the_start() -> None:
    """B64: the socket's own address counts, whoever opened it and whatever the settings say."""
    for sockets in ([socket.create_server(("0.0.0.0", 0))], None):
        host = "127.0.0.1" if sockets else "0.0.0.0"
        with pytest.raises(StartError, match="--api-key"):
            await serve(make_app(Told()), ServeSettings(host=host, port=0), sockets=sockets)
    async with running(sockets=[socket.create_server(("0.0.0.0", 0))], api_keys="k") as server:
        await server.hello()


async def test_http2_is_agreed_on_within_tls() -> None:
    async with running(tls=TLS) as server:
        assert server.url.startswith("https://127.0.0.1:")
        stream = await server.connect_tls("h2", "http/1.1")
        assert stream.selected_alpn_protocol() == "h2"
        assert await (await H2Client.over(stream)).answer(b"/hello") == (200, b"hello")


async def test_a_certificate_that_cannot_be_used_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"can't use the certificate and key in .*: No such file"):
        await serve(make_app(Told()), ServeSettings(port=0), tls=Tls(tmp_path / "none", tmp_path / "none"))


async def test_a_key_with_a_pass_phrase_refuses_the_start_and_asks_nobody_for_it() -> None:
    locked = CERTIFICATE.with_name("edge_locked_key.pem")
    with pytest.raises(StartError, match=r"can't use the certificate and key in .*edge_locked_key"):
        await serve(None, ServeSettings(port=0), tls=Tls(CERTIFICATE, locked))


async def test_a_port_in_use_refuses_the_start_in_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"^can't listen on 127.0.0.1:{port}: the address is in use") as caught:
            await serve(make_app(Told()), ServeSettings(port=port))
        assert "\n" not in str(caught.value)


async def test_an_app_that_cannot_start_refuses_the_start() -> None:
    app = make_app(Told())

    @app.before_serving
    async def fail() -> None:
        raise ValueError("no disk")

    with pytest.raises(StartError, match="the app could not start: no disk"):
        await serve(app, ServeSettings(port=0))


async def test_an_app_is_told_of_its_start_and_its_end() -> None:
    told = Told()
    app = make_app(told)

    @app.before_serving
    async def before() -> None:
        told("before")

    @app.after_serving
    async def after() -> None:
        told("after")

    async with running(app=app) as server:
        assert told.counts == {"before": 1}
        server.stop.set()
        await server.ended.wait()
    assert told.counts == {"before": 1, "after": 1}


async def test_a_shutdown_lets_what_is_in_flight_finish_and_takes_nothing_new() -> None:
    """B40: the running request is answered whole, and told that the connection ends."""
    async with running() as server:
        client = await server.connect()
        await client.send_all(GET_UNTIL_GO)
        await server.told.wait("until-go began")
        server.stop.set()
        while True:
            # The listener closes as soon as the server has seen the trigger.
            try:
                late = await server.connect()
            except OSError:
                break
            await late.aclose()
        server.app.config["GO"].set()
        answered = await receive_all(client)
        assert answered.endswith(b"gone")
        assert b"connection: close" in answered
        await server.ended.wait()


async def test_a_connection_whose_last_stream_is_reset_does_not_delay_a_shutdown() -> None:
    """B67: it became idle while the server was closing."""
    async with running(limit_s=5, drain_timeout_s=60, allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/wait")
        await server.told.wait("wait began")
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        client.h2.reset_stream(stream_id)
        await client.flush()
        await server.ended.wait()


@pytest.mark.parametrize("handler", ["wait", "echo"])
@pytest.mark.parametrize("over", ["http1", "http2"])
async def test_who_has_no_answer_at_the_deadline_is_told_so(over: str, handler: str) -> None:
    """B40: 503 and when to try again, `drain_timeout_s` after the trigger; also in the midst of an upload."""
    async with running(limit_s=5, drain_timeout_s=0.1, allow_h2c=True) as server:
        stream = await server.connect()
        if over == "http1":
            await stream.send_all(f"POST /{handler} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf".encode())
        else:
            client = await H2Client.over(stream)
            stream_id = await client.request(f"/{handler}".encode(), method=b"POST", body=True)
        await server.told.wait(f"{handler} began")
        server.stop.set()
        if over == "http1":
            answered = await receive_all(stream)
            assert answered.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1" in answered
            assert answered.count(b"connection: ") == 1
        else:
            await client.until(lambda: stream_id in client.ended)
            assert client.status[stream_id] == 503
            answered = client.data[stream_id]
        assert b'"shutting_down"' in answered
        assert server.told.counts[f"{handler} cancelled"] == 1
        await stream.aclose()
        await server.ended.wait()
    assert [access.status for access in server.accesses] == [503]


@pytest.mark.parametrize("over", ["http1", "http2"])
async def test_an_answer_under_way_at_the_deadline_is_cut_a_moment_later(over: str) -> None:
    """B40: time for its last words, and no more."""
    async with running(limit_s=5, drain_timeout_s=0.1, allow_h2c=True) as server:
        stream = await server.connect()
        if over == "http1":
            await stream.send_all(b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n")
        else:
            await (await H2Client.over(stream)).request(b"/stream")
        await server.told.wait("stream began")
        server.stop.set()
        await server.ended.wait()
        assert server.told.counts["stream cancelled"] == 1


async def test_a_trigger_may_bring_the_deadline() -> None:
    """B40: who has waited already waits no second time."""

    async def over_now() -> float:
        await told.wait("wait began")
        return trio.current_time()

    told = Told()
    settings = ServeSettings(port=0, drain_timeout_s=86400)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            (address,) = await nursery.start(partial(serve, make_app(told), settings, shutdown_trigger=over_now))
            async with await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2])) as client:
                await client.send_all(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
                assert (await receive_all(client)).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("over", ["http1", "http2", "tls"])
async def test_an_idle_connection_does_not_delay_a_shutdown(over: str, used: bool) -> None:
    """B67: used or not, it is closed at once; the drain could take a minute."""
    options: dict[str, Any] = {"tls": TLS} if over == "tls" else {"allow_h2c": True}
    async with running(limit_s=5, drain_timeout_s=60, **options) as server:
        stream: Any = await (server.connect_tls("h2") if over == "tls" else server.connect())
        if over == "http1":
            client = None
            if used:
                await stream.send_all(GET_HELLO)
                await receive_until(stream, b"hello")
        else:
            client = await H2Client.over(stream)
            if used:
                await client.answer(b"/hello")
        server.stop.set()
        await server.ended.wait()
        if client is None:
            assert await receive_all(stream) == b""


async def test_a_handshake_under_way_does_not_delay_a_shutdown() -> None:
    """B67: a client that connected for TLS and says nothing."""
    async with running(limit_s=5, drain_timeout_s=60, tls=TLS) as server:
        await server.connect()
        await (await H2Client.over(await server.connect_tls("h2"))).answer(b"/hello")
        server.stop.set()
        await server.ended.wait()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("over", ["http1", "http2"])
async def test_an_idle_connection_is_closed_after_its_time(over: str, used: bool) -> None:
    """B67: the time counts from the end of the last answer, and from the connection's beginning."""
    async with running(limit_s=5, keep_alive_s=0.2, body_timeout_s=0.1, allow_h2c=True) as server:
        stream = await server.connect()
        if over == "http1":
            if used:
                await stream.send_all(GET_HELLO)
                await receive_until(stream, b"hello")
            assert await receive_all(stream) == b""
        else:
            client = await H2Client.over(stream)
            if used:
                await client.answer(b"/hello")
            while await client.read():
                pass


async def test_a_stream_that_its_client_reset_does_not_keep_the_connection_open() -> None:
    """B67: nor one that was refused."""
    async with running(limit_s=5, keep_alive_s=0.2, body_timeout_s=0.1, allow_h2c=True) as server:
        client = await H2Client.over(await server.connect())
        stream_id = await client.request(b"/wait")
        await server.told.wait("wait began")
        client.h2.reset_stream(stream_id)
        await client.flush()
        assert (await client.answer(b"not-a-path"))[0] == 400
        while await client.read():
            pass


async def test_a_request_in_flight_is_not_idle() -> None:
    """B67: it may take longer than the keep-alive time."""
    async with running(keep_alive_s=0.05, body_timeout_s=0.05) as server:
        client = await server.connect()
        await client.send_all(GET_UNTIL_GO)
        await server.told.wait("until-go began")
        quick = await server.connect()
        # Its end shows that more than the keep-alive time has passed.
        assert await receive_all(quick) == b""
        server.app.config["GO"].set()
        await receive_until(client, b"gone")


async def test_a_cancel_ends_the_server_now() -> None:
    """B41: also with a request in flight, an idle client, and one that reads nothing of what is sent to it."""
    told = Told()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            address = (await nursery.start(serve, make_app(told), ServeSettings(port=0, drain_timeout_s=60)))[0]
            port = int(address.rpartition(":")[2])
            clients = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
            await clients[0].send_all(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
            await clients[1].send_all(b"GET /flood HTTP/1.1\r\n" + HOST + b"\r\n")
            await told.wait("wait began")
            await told.wait("flood wrote", 8)
            nursery.cancel_scope.cancel()
    assert told.counts["wait cancelled"] == 1
    assert told.counts["flood cancelled"] == 1
    for client in clients:
        await client.aclose()


async def test_a_full_server_closes_an_idle_connection_for_a_new_one() -> None:
    """B66: the one that has been idle for longest."""
    async with running(max_connections=3) as server:
        clients = [await server.connect() for _ in range(3)]
        await clients[0].send_all(GET_UNTIL_GO)
        await server.told.wait("until-go began")
        await clients[1].send_all(GET_HELLO)
        await receive_until(clients[1], b"hello")
        await server.hello()
        assert await receive_all(clients[2]) == b""
        await clients[1].send_all(GET_HELLO)
        await receive_until(clients[1], b"hello")
        server.app.config["GO"].set()
        await receive_until(clients[0], b"gone")


async def test_a_full_server_turns_others_away() -> None:
    """B66: with 503 and when to try again; whom it serves, it goes on serving."""
    async with running(max_connections=2) as server:
        clients = [await server.connect() for _ in range(2)]
        for client in clients:
            await client.send_all(GET_UNTIL_GO)
        await server.told.wait("until-go began", 2)
        other = await server.connect()
        answered = await receive_all(other)
        assert answered.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answered
        server.app.config["GO"].set()
        for client in clients:
            await receive_until(client, b"gone")
        await server.hello()


async def test_a_server_leaves_no_open_file() -> None:
    """B42: neither of its listeners nor of its clients."""
    before = len(os.listdir("/proc/self/fd"))
    async with running(limit_s=5) as server:
        for _ in range(5):
            client = await server.connect()
            await client.send_all(GET_HELLO)
            await receive_until(client, b"hello")
        server.stop.set()
        await server.ended.wait()
    assert len(os.listdir("/proc/self/fd")) == before
