"""A small Quart-Trio app whose handlers tell what happens to them, and a server around it on loopback."""

from __future__ import annotations

import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from quart import request
from quart_trio import QuartTrio

from strata.config import ServeSettings
from strata.http.exchange import Access
from strata.http.pump import PumpResponse, Writer, use_pumps
from strata.http.serving import Tls, serve

CERTIFICATE = Path(__file__).with_name("edge_certificate.pem")
"""Signs itself; its key is beside it and guards nothing."""
TLS = Tls(CERTIFICATE, CERTIFICATE)


class Told:
    """What the handlers have said so far; whoever waits for it is woken."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._lot = trio.lowlevel.ParkingLot()

    def __call__(self, word: str) -> None:
        self.counts[word] += 1
        self._lot.unpark_all()

    async def wait(self, word: str, times: int = 1) -> None:
        while self.counts[word] < times:
            await self._lot.park()


def make_app(told: Told) -> QuartTrio:
    app = QuartTrio("edge")
    use_pumps(app)
    go = app.config["GO"] = trio.Event()

    def watched(name: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any) -> Any:
            told(f"{name} began")
            try:
                return await handler(*args)
            except trio.Cancelled:
                told(f"{name} cancelled")
                raise

        return run

    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.post("/echo")
    async def echo() -> Any:
        return await watched("echo", request.get_data)()

    @app.post("/early")
    async def early() -> tuple[str, int]:
        return "early", 200

    @app.route("/wait", methods=["GET", "POST"])
    async def wait() -> str:
        await watched("wait", trio.sleep_forever)()
        return ""

    @app.route("/until-go", methods=["GET", "POST"])
    async def until_go() -> str:
        await watched("until-go", go.wait)()
        return "gone"

    @app.route("/stream", methods=["GET", "POST"])
    async def stream() -> PumpResponse:
        async def pump(write: Writer) -> None:
            await write(b"data: first\n\n")
            await watched("stream", trio.sleep_forever)()

        return PumpResponse(pump)

    @app.get("/flood")
    async def flood() -> PumpResponse:
        async def pump(write: Writer) -> None:
            async def for_ever() -> None:
                while True:
                    await write(b"x" * 16384)
                    told("flood wrote")

            await watched("flood", for_ever)()

        return PumpResponse(pump)

    @app.get("/count/<int:last>")
    async def count(last: int) -> PumpResponse:
        async def pump(write: Writer) -> None:
            for n in range(last):
                await write(b"%d\n" % n)

        return PumpResponse(pump)

    @app.get("/ticks")
    async def ticks() -> PumpResponse:
        async def pump(write: Writer) -> None:
            n = 0
            while not go.is_set():
                await write(b"%d\n" % n)
                await trio.sleep(0.005)
                n += 1

        return PumpResponse(pump)

    @app.get("/boom")
    async def boom() -> PumpResponse:
        async def pump(write: Writer) -> None:
            await write(b"data: half\n\n")
            raise ValueError("a secret")

        return PumpResponse(pump)

    return app


class Running:
    """A server under test."""

    def __init__(self, told: Told, app: QuartTrio, addresses: tuple[str, ...], stop: trio.Event) -> None:
        self.told, self.app, self.addresses, self.stop = told, app, addresses, stop
        self.ended = trio.Event()
        self.accesses: list[Access] = []
        self.clients: list[trio.SocketStream] = []

    @property
    def url(self) -> str:
        return self.addresses[0]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    async def connect(self) -> trio.SocketStream:
        """A client of this server, closed at the block's end if not before."""
        client = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.clients.append(client)
        return client

    async def connect_tls(self, *protocols: str) -> trio.SSLStream[trio.SocketStream]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Who the server is doesn't matter here, and the clock may be anything.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(list(protocols))
        stream = trio.SSLStream(await self.connect(), context, server_hostname="localhost", https_compatible=True)
        await stream.do_handshake()
        return stream

    async def hello(self) -> None:
        """Another client is served as ever."""
        client = await self.connect()
        await client.send_all(b"GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        got = await receive_all(client)
        assert got.startswith(b"HTTP/1.1 200"), got
        assert got.endswith(b"hello"), got


@asynccontextmanager
async def running(*, limit_s: float = 10, app: Any = None, **named: Any) -> AsyncIterator[Running]:
    """A server for the block; at the block's end it is cancelled.  The whole may take `limit_s`."""
    told = Told()
    app = app or make_app(told)
    options = {name: named.pop(name) for name in ("tls", "allow_h2c", "sockets", "on_access") if name in named}
    settings = ServeSettings(**{"port": 0, **named})
    stop, accesses, ended = trio.Event(), [], trio.Event()

    async def run(*, task_status: trio.TaskStatus[tuple[str, ...]]) -> None:
        await serve(
            app,
            settings,
            shutdown_trigger=stop.wait,
            task_status=task_status,
            **{"on_access": accesses.append, **options},
        )
        ended.set()

    with trio.fail_after(limit_s):
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(run)
            here = Running(told, app, addresses, stop)
            here.accesses, here.ended = accesses, ended
            try:
                yield here
            finally:
                for client in here.clients:
                    client.socket.close()
            nursery.cancel_scope.cancel()


class H2Client:
    """An HTTP/2 client that does what it is told, also what no decent one does."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.data: defaultdict[int, bytes] = defaultdict(bytes)
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.status: dict[int, int] = {}
        self.goodbye: int | None = None
        self.closed = False
        config = H2Configuration(
            client_side=True, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self.h2 = H2Connection(config=config)

    @classmethod
    async def over(cls, stream: trio.abc.Stream) -> H2Client:
        client = cls(stream)
        client.h2.initiate_connection()
        await client.flush()
        return client

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            await self.stream.send_all(data)

    @staticmethod
    def head(path: bytes, method: bytes = b"GET") -> list[tuple[bytes, bytes]]:
        return [(b":method", method), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", path)]

    async def request(self, path: bytes, *, method: bytes = b"GET", body: bool = False, more: Any = ()) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, [*self.head(path, method), *more], end_stream=not body)
        await self.flush()
        return stream_id

    async def until(self, happened: Callable[[], Any]) -> None:
        """Read until `happened()`, or fail when the server closes."""
        while not happened():
            assert await self.read(), "the server closed the connection"

    async def read(self) -> bool:
        """Read once; False when there is no more."""
        try:
            got = await self.stream.receive_some()
        except trio.BrokenResourceError:
            got = b""
        if not got:
            self.closed = True
            return False
        for event in self.h2.receive_data(got):
            self._note(event)
        with suppress(trio.BrokenResourceError):
            await self.flush()
        return True

    def _note(self, event: Event) -> None:
        match event:
            case ResponseReceived():
                self.status[event.stream_id] = int(dict(event.headers)[b":status"])
            case DataReceived():
                self.data[event.stream_id] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                self.ended.add(event.stream_id)
            case StreamReset():
                self.reset[event.stream_id] = int(event.error_code)
            case ConnectionTerminated():
                self.goodbye = int(event.error_code)

    async def answer(self, path: bytes, **named: Any) -> tuple[int, bytes]:
        stream_id = await self.request(path, **named)
        await self.until(lambda: stream_id in self.ended)
        return self.status[stream_id], self.data[stream_id]


async def receive_until(stream: trio.abc.ReceiveStream, wanted: bytes) -> bytes:
    """All that came up to and with `wanted`."""
    got = b""
    while wanted not in got:
        more = await stream.receive_some()
        assert more, f"ended after {got!r}"
        got += more
    return got


async def receive_all(stream: trio.abc.ReceiveStream) -> bytes:
    got = b""
    try:
        while more := await stream.receive_some():
            got += more
    except trio.BrokenResourceError:
        got += b"<reset>"
    return got


def reset(stream: trio.SocketStream) -> None:
    """Leave without a word: the peer sees a reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    stream.socket.close()


async def h2_close(client: H2Client, _stream_id: int) -> None:
    await client.stream.aclose()


async def h2_break_off(client: H2Client, _stream_id: int) -> None:
    reset(getattr(client.stream, "transport_stream", client.stream))


async def h2_half_close(client: H2Client, _stream_id: int) -> None:
    await getattr(client.stream, "transport_stream", client.stream).send_eof()


async def h2_reset_stream(client: H2Client, stream_id: int) -> None:
    client.h2.reset_stream(stream_id, 8)
    await client.flush()


async def h2_goodbye(client: H2Client, _stream_id: int) -> None:
    client.h2.close_connection()
    await client.flush()


H2_WAYS = [h2_close, h2_break_off, h2_half_close, h2_reset_stream, h2_goodbye]
"""In which a client may leave, or withdraw one request."""
