"""Bytes that no client should send, by the thousand, with a healthy stream beside them whose bytes never change."""

from __future__ import annotations

import logging
import os
import random
import socket
from contextlib import suppress

import pytest
import trio
import trio.testing
from edge_support import H2Client, Running, running
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

REQUESTS = int(os.environ.get("STRATA_FUZZ_REQUESTS", "20000"))
"""Half a minute of one core's time: 1.5 ms each, client and server together.  Each number from 0 up is a case of its
own, and most send more than one request."""
AT_ONCE = 40
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

SEEDS = [
    b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /count/50 HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n",
    b'POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{"a": [1, 2.5e3]}',
    b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4\r\nsome\r\n3;x=y\r\nmor\r\n0\r\nT: v\r\n\r\n",
    b"POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
    b"GET http://a/hello?q=%ff&r=1 HTTP/1.1\r\nHost: a\r\nCookie: a=b; c\r\nRange: bytes=0-1\r\n\r\n",
    b"HEAD /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /hello HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"POST /early HTTP/1.1\r\nHost: a\r\n"
    b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5\r\n\r\n--x--",
]
SPICES = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"\xff",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"%",
        b"%00",
        b"%zz",
        b"..",
        b"//",
        b"?",
        b"#",
        b"@",
    ),
    *(b"[", b"[::1", b"http://", b"http://[", b"-1", b"0", b"99999999999999999999", b"1e9", b"0x10", b"+5", b"chunked"),
    *(
        b"Host: b\r\n",
        b"Host: [\r\n",
        b"Host: \xc3\xa9:x\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: gzip\r\n",
    ),
    *(b"Connection: close\r\n", b"Upgrade: h2c\r\n", b"Expect: 200-maybe\r\n", b"Content-Type: \xe2\x98\x83;;=\r\n"),
    *(b"X" * 300, b"a=b;" * 100, b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/9.9", b"\xe2\x98\x83"),
]


def mutated(chance: random.Random, text: bytes) -> bytes:
    """A few small accidents."""
    for _ in range(chance.choice([0, 1, 1, 2, 3, 5, 8])):
        at, to = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
        to = min(to, at + 20)
        match chance.randrange(6):
            case 0:
                text = text[:at] + text[to:]
            case 1:
                text = text[:to] + text[at:to] * chance.randrange(1, 4) + text[to:]
            case 2:
                text = text[:at] + bytes([chance.randrange(256)]) + text[at + 1 :]
            case 3 | 4:
                text = text[:at] + chance.choice(SPICES) + text[at:]
            case 5:
                text = text[:at] + chance.choice(SPICES) + text[to:]
    return text


def http1(chance: random.Random) -> bytes:
    return b"".join(mutated(chance, chance.choice(SEEDS)) for _ in range(chance.choice([1, 1, 1, 2, 4])))


def http2(chance: random.Random) -> bytes:
    """A client's frames, in any order, some of them broken."""
    client = H2Client(trio.testing.memory_stream_pair()[0])
    client.h2.initiate_connection()
    for n in range(1, 2 * chance.randrange(1, 5), 2):
        pseudo = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/echo")]
        fields = [(name, mutated(chance, value) if chance.random() < 0.2 else value) for name, value in pseudo]
        client.h2.send_headers(n, fields, end_stream=chance.random() < 0.5)
    frames: list[Frame] = [
        DataFrame(
            chance.randrange(1, 6), chance.randbytes(chance.randrange(40)), flags=chance.choice([[], ["END_STREAM"]])
        ),
        RstStreamFrame(chance.randrange(1, 6), error_code=8),
        PingFrame(0, b"12345678"),
        SettingsFrame(0, settings={chance.randrange(1, 7): chance.randrange(1, 2**24)}),
        WindowUpdateFrame(chance.randrange(6), window_increment=chance.randrange(1, 2**31)),
        HeadersFrame(chance.randrange(1, 6), chance.randbytes(9), flags=["END_HEADERS"]),
    ]
    parts = [client.h2.data_to_send(), *(frame.serialize() for frame in chance.sample(frames, chance.randrange(5)))]
    return PREFACE + mutated(chance, b"".join(parts).removeprefix(PREFACE))


async def send_in_pieces(client: trio.socket.SocketType, text: bytes, chance: random.Random) -> None:
    while text:
        text = text[await client.send(text[: chance.choice([1, 7, 100, 10000])]) :]


async def one_case(server: Running, seed: int, answers: list[bytes]) -> None:
    chance = random.Random(seed)
    text = (http2 if chance.random() < 0.25 else http1)(chance)
    # A bare socket: a stream's own checks cost more than the server's part in this.
    with trio.socket.socket() as client:
        await client.connect(("127.0.0.1", server.port))
        try:
            await send_in_pieces(client, text, chance)
            if chance.random() < 0.2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                return
            if chance.random() < 0.2:
                client.shutdown(socket.SHUT_WR)
            # The server's own time limits end what is left incomplete.
            answers.append(await receive_rest(client))
        except OSError:
            return


async def receive_rest(client: trio.socket.SocketType) -> bytes:
    got = b""
    with suppress(ConnectionError):
        while more := await client.recv(65536):
            got += more
    return got


async def healthy(server: Running, done: trio.Event) -> bytes:
    """Read a stream of counted lines until the end."""
    client = await server.connect()
    await client.send_all(b"GET /ticks HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    body = b""
    while not body.endswith(b"0\r\n\r\n"):
        more = await client.receive_some()
        assert more, "the healthy stream was cut"
        body += more
    done.set()
    return body


async def test_no_bytes_hurt_the_server_or_its_other_streams(caplog: pytest.LogCaptureFixture) -> None:
    """B66: mutated requests over both protocols; no 5xx, no failure in the log, and every byte beside them right."""
    answers: list[bytes] = []
    bodies: list[bytes] = []
    done = trio.Event()
    limits = {"keep_alive_s": 0.1, "body_timeout_s": 0.1, "max_body_mib": 0.01}
    with caplog.at_level(logging.WARNING):
        async with running(limit_s=60 + REQUESTS / 20, allow_h2c=True, **limits) as server:

            async def read_healthy() -> None:
                bodies.append(await healthy(server, done))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_healthy)
                seeds = list(range(REQUESTS))

                async def worker() -> None:
                    while seeds:
                        await one_case(server, seeds.pop(), answers)

                async with trio.open_nursery() as workers:
                    for _ in range(AT_ONCE):
                        workers.start_soon(worker)
                server.app.config["GO"].set()
                await done.wait()
            await server.hello()
    lines = [line for line in bodies[0].partition(b"\r\n\r\n")[2].split(b"\r\n") if line.endswith(b"\n")]
    assert lines == [b"%d\n" % n for n in range(len(lines))]
    assert [record.getMessage() for record in caplog.records] == []
    statuses = [part[:3] for answer in answers for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert {status for status in statuses if status.startswith(b"5")} <= {b"505"}, "only a version that is not ours"
    assert statuses.count(b"200") > REQUESTS / 10
    assert statuses.count(b"400") > REQUESTS / 10
