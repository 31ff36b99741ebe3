"""One client: its bytes in, its answers out, and its end.  Knows sockets and time; HTTP is the protocols' business.

Whatever goes wrong here ends this connection and nothing else.  One task reads, always, so that a client's leaving is
seen at once; the tasks of its requests write.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H2ProtocolAssumedError
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from strata.http.errors import as_internal
from strata.http.exchange import DONE, App, Breath, Exchanges, Limits, OnAccess
from strata.http.protocols import H2, H11
from strata.http.wire import FINISH_S, RECEIVE_BYTES, Wire

LINGER_S: Final = 2.0
"""How long a client may go on sending after its last answer.  Closing at once would reset it, and it might never read
the answer that says why."""


@frozen
class Service:
    """What all connections of a server share."""

    app: App
    config: Config
    context: WorkerContext
    limits: Limits
    stall_s: float
    keep_alive_s: float
    allow_h2c: bool
    tls: ssl.SSLContext | None
    on_access: OnAccess | None


class Connection:
    def __init__(self, wire: Wire, service: Service) -> None:
        self._wire, self._service = wire, service
        self._stream: Wire | trio.SSLStream[Wire] = wire
        if service.tls is not None:
            self._stream = trio.SSLStream(wire, service.tls, server_side=True, https_compatible=True)
        self._tasks = Exchanges(service.limits, service.on_access)
        self._protocol: H11 | H2
        # None: nobody waits for the client to take something.
        self._writing: trio.Lock | None = None
        self._unsent = bytearray()
        self._breath = Breath()
        self._gone = False
        self._ending = False
        self._reading = trio.CancelScope()
        # When the head that has begun must be whole.  None: no byte of one has come.
        self._head_due: float | None = None
        self.idle = True
        self._be_idle()

    def __repr__(self) -> str:
        return f"<Connection {'idle' if self.idle else 'busy'}, {len(self._unsent)} bytes to send>"

    async def run(self, over: Callable[[Connection], None]) -> None:
        """Serve this client until it or we end it, and call `over`.  Raises nothing but what is the caller's: Cancelled
        and exits."""
        try:
            await self._serve()
        except Exception as error:
            _log_failure(error)
        except BaseExceptionGroup as group:
            mine, others = group.split(Exception)
            if mine is not None:
                _log_failure(mine)
            if others is not None:
                raise others from None
        finally:
            self._wire.close()
            over(self)
        await trio.lowlevel.checkpoint_if_cancelled()

    def end_if_idle(self) -> None:
        """The server is closing, or needs the place: a client that waits for nothing goes now."""
        if self.idle:
            self.idle = False
            self._read_until(-math.inf)

    def close_down(self) -> None:
        """The server's time is up: who has no answer yet gets one that says so."""
        self._tasks.close_down()

    async def _serve(self) -> None:
        try:
            agreed = await self._handshake()
            self._shared = self._arguments()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            # Gone before it said a word.
            await trio.lowlevel.checkpoint()
            return
        async with self._tasks:
            self._speak_http2() if agreed == "h2" else self._speak_http1()
            await self._protocol.initiate()
            await self._read()
            # Nobody is there: what still writes writes to nobody, and is told so.
            self._gone = True
            await self._protocol.handle(Closed())
            await self._stream.aclose()
            self._tasks.cancel()

    async def _handshake(self) -> str | None:
        """The protocol that was agreed on within TLS.  Raises ClosedResourceError where that takes too long."""
        if not isinstance(self._stream, trio.SSLStream):
            await trio.lowlevel.checkpoint_if_cancelled()
            return None
        self._read_until(trio.current_time() + self._service.limits.body_timeout_s)
        with self._reading:
            await self._stream.do_handshake()
            self._be_idle()
            agreed: str | None = self._stream.selected_alpn_protocol()
            return agreed
        raise trio.ClosedResourceError

    def _arguments(self) -> tuple[Any, ...]:
        """What each of Hypercorn's protocols is made of.  Raises OSError where the client is gone already."""
        service, sock = self._service, self._wire.socket
        return (
            service.app,
            service.config,
            service.context,
            self._tasks,
            ConnectionState({}),
            service.tls is not None,
            parse_socket_addr(sock.family, sock.getpeername()),
            parse_socket_addr(sock.family, sock.getsockname()),
            self.send,
        )

    def _speak_http1(self) -> None:
        service = self._service
        self._protocol = H11(
            *self._shared,
            body_bytes=service.limits.body_bytes,
            allow_h2c=service.allow_h2c,
            send_at_once=self.send_at_once,
        )
        self._tasks.body_at_once = self._protocol.body_at_once

    def _speak_http2(self) -> None:
        service = self._service
        self._tasks.body_at_once = None
        self._protocol = H2(*self._shared, body_bytes=service.limits.body_bytes, stall_s=service.stall_s)

    async def _read(self) -> None:
        """Until the client leaves, is idle for too long, or has had its last answer."""
        while True:
            data = b""
            try:
                with trio.CancelScope(deadline=self._reads_until) as self._reading:
                    data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await trio.lowlevel.checkpoint()
            if not data:
                await trio.lowlevel.checkpoint_if_cancelled()
                return
            if not self._ending:
                await self._hear(data)

    def _time_head(self) -> None:
        """The head of a request takes no longer than a body may, counted from its first byte: whatever trickles in
        buys no time."""
        if self._head_due is None:
            self._head_due = trio.current_time() + self._service.limits.body_timeout_s
            self._read_until(max(self._idle_until, self._head_due))

    async def _hear(self, data: bytes) -> None:
        if self.idle:
            self._time_head()
        try:
            await self._protocol.handle(RawData(data))
        except H2ProtocolAssumedError as assumed:
            self._speak_http2()
            # Its preface looked like a request.
            self._be_idle()
            await self._protocol.initiate()
            await self._protocol.handle(RawData(assumed.data))

    def send(self, event: Event) -> Awaitable[None]:
        """What the protocols want of us: to write, to end, or to know whether a request is under way."""
        if isinstance(event, RawData):
            return self._write(event.data)
        if isinstance(event, Closed):
            return self._end()
        if isinstance(event, Updated):
            self._be_idle() if event.idle else self._be_busy()
        return DONE

    def send_at_once(self, data: bytes) -> Awaitable[None] | None:
        """Write now what the kernel takes, whole and in order as all else.  None: all; else the rest has to be awaited.

        Raises trio.WouldBlock, with nothing written, where others are writing, all is over, or TLS is in between.
        """
        if self._gone or self._ending or self._unsent or self._stream is not self._wire or self._writing is not None:
            raise trio.WouldBlock
        try:
            rest = self._wire.send_nowait(data)
        except trio.BrokenResourceError:
            self._lose()
            return trio.lowlevel.checkpoint()
        if not rest:
            return None
        self._unsent += rest
        return self._flush()

    async def _write(self, data: bytes) -> None:
        """Returns when the bytes are the kernel's.  Whole and in order, whoever is cancelled: the protocols have
        counted them as sent."""
        if self._gone or self._ending:
            # A full checkpoint, so that a writer in a loop lets the reader tell it.
            await trio.lowlevel.checkpoint()
            return
        try:
            rest = self.send_at_once(data)
        except trio.WouldBlock:
            self._unsent += data
            rest = self._flush()
        await (self._breath.take() if rest is None else rest)

    async def _flush(self) -> None:
        """Send all that is unsent, by others too.  One that is cancelled while it waits leaves its bytes to them."""
        writing = self._writing = self._writing or trio.Lock()
        try:
            writing.acquire_nowait()
        except trio.WouldBlock:
            await writing.acquire()
        try:
            while self._unsent:
                taken = bytes(self._unsent)
                self._unsent.clear()
                await self._send_whole(taken)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._lose()
        finally:
            writing.release()
            if not writing.locked():
                self._writing = None
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _send_whole(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except trio.Cancelled:
            # TLS looks for a cancel before it takes anything; the wire below lets none out but with a reset.
            if not self._wire.closed:
                with trio.move_on_after(FINISH_S, shield=True) as finishing:
                    await self._stream.send_all(data)
                if finishing.cancelled_caught:
                    self._lose()
            raise

    def _lose(self) -> None:
        """The client is gone or takes nothing: the reader finds the socket closed, and ends it all."""
        self._gone = True
        self._unsent.clear()
        self._wire.reset()

    async def _end(self) -> None:
        """After the last answer: nothing more is written, and what still comes is thrown away."""
        if self._ending:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        self._ending = True
        self.idle = False
        try:
            await self._flush()
            if not self._gone:
                await self._wire.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._lose()
        finally:
            self._read_until(trio.current_time() + (LINGER_S if self._protocol.may_hear_more else 0))
            await self._protocol.handle(Closed())

    def _be_idle(self) -> None:
        if self._ending:
            return
        self.idle = True
        self._head_due = None
        self.idle_since = trio.current_time()
        self._idle_until = self.idle_since + self._service.keep_alive_s
        self._read_until(self._idle_until)
        if self._service.context.terminated.is_set():
            self.end_if_idle()

    def _be_busy(self) -> None:
        if not self._ending:
            self.idle = False
            self._read_until(math.inf)

    def _read_until(self, deadline: float) -> None:
        self._reads_until = deadline
        self._reading.deadline = deadline


def _log_failure(error: Exception) -> None:
    """A bug, ours or a library's, that cost one connection.  Without the message, which may quote what was sent."""
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            _log_failure(each)
    else:
        as_internal(error)
