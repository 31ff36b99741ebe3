"""HTTP/1.1 and HTTP/2 as Hypercorn speaks them, with what one client could do to the others mended.

Nothing here waits for the app: a reader that waits doesn't see its client leave.  Knows no socket; bytes come in by
`handle` and go out by `send`.  What is mended is told where it is.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final

import h2.events
import h2.exceptions
import h11
import trio
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, H2Protocol
from hypercorn.protocol.h11 import H11Protocol

from strata.errors import InvalidRequest
from strata.http.errors import STATUS_TYPES, ErrorAnswer, ErrorBody, Refusal, refusal
from strata.http.exchange import DONE, AtOnce, encoded, too_large
from strata.http.frames import Calm

MAX_PIPELINED_BYTES: Final = 64 * 1024
"""Held of what a client sends behind a request that is still being answered.  Of one that sends more nothing else is
answered: the connection closes behind that answer, and the client may ask again (RFC 9112, 9.3.2)."""
MAX_DROPPED_BYTES: Final = 2**20
"""Read and thrown away of what came after that, so that a leaving is seen; one that sends still more is cut off."""
SLICE_BYTES: Final = 2048
"""Of HTTP/2, parsed at once: so many bytes of the smallest frames take a few milliseconds."""
YIELD_AFTER: Final = 64
"""HTTP/2 frames, or events of one slice, before others are let run."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_PATH: Final = re.compile(rb"/[\x21-\x7e]*")
_ABSOLUTE: Final = re.compile(rb"https?://(?P<host>[^/?#]*)", re.IGNORECASE)
_OF_THE_HOP: Final = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
"""Headers that HTTP/2 forbids; one of them in an answer would leave the client without any."""


def origin_form(target: bytes) -> tuple[bytes, bytes | None]:
    """The target as a path with its query, empty where it is no such thing; and the host that it names, if it does.

    >>> origin_form(b"http://example.com/x?y")
    (b'/x?y', b'example.com')
    """
    host: bytes | None = None
    if found := _ABSOLUTE.match(target):
        host, rest = found["host"], target[found.end() :]
        target = rest if rest.startswith(b"/") else b"/" + rest
    # An address without a host is none (RFC 9110, 4.2.1).
    return target if _PATH.fullmatch(target) and host != b"" else b"", host


def own_headers(headers: Sequence[tuple[bytes, bytes]], host: bytes | None) -> list[tuple[bytes, bytes]]:
    """Those that count: an upgrade may be ignored (RFC 9110, 7.8), and is, for what it leads to is not served here; the
    host of the target goes before the header's (RFC 9112, 3.2.2)."""
    kept = [pair for pair in headers if pair[0] != b"upgrade" and (host is None or pair[0] != b"host")]
    return kept if host is None else [(b"host", host), *kept]


def objection(method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]], body_bytes: int) -> Refusal | None:
    """Why a request isn't let in, before any of its body is read."""
    if method == b"CONNECT":
        return _refused(405, "CONNECT is not served here", "method_not_allowed")
    if not _TOKEN.fullmatch(method):
        return refusal(InvalidRequest("the method is not a word", code="bad_method"))
    if not target:
        return refusal(InvalidRequest("the request's target is not a path", code="bad_target"))
    named = {name.lower(): value for name, value in headers}
    if b"content-length" in named and b"transfer-encoding" in named:
        # Who stands between may have gone by the other one (RFC 9112, 6.1), and taken the rest for another request.
        return refusal(InvalidRequest("Content-Length and Transfer-Encoding exclude each other", code="bad_framing"))
    if int(named.get(b"content-length", 0)) > body_bytes:
        return too_large(body_bytes)
    return None


def _refused(status: int, message: str, code: str) -> Refusal:
    kind = STATUS_TYPES.get(status, "invalid_request_error")
    return Refusal(status, ErrorAnswer(ErrorBody(message, kind, None, code)))


class _PausedError(Exception):
    """The next request has to wait until this one is answered."""


class _Gate:
    """In place of the event at which Hypercorn's reader would wait for the end of an answer: it goes on reading."""

    def clear(self) -> Awaitable[None]:
        return DONE

    def set(self) -> Awaitable[None]:
        return DONE

    def wait(self) -> Awaitable[None]:
        raise _PausedError


class H11(H11Protocol):
    """HTTP/1.1 that reads while it answers, ignores upgrades, and lets nothing but a plain request in."""

    def __init__(self, *args: Any, body_bytes: int, allow_h2c: bool, send_at_once: AtOnce) -> None:
        super().__init__(*args)
        self.can_read: Any = _Gate()
        self._body_bytes = body_bytes
        self._allow_h2c = allow_h2c
        self._parsing: trio.Lock | None = None
        self._send_at_once = send_at_once
        self._paused = False
        self._held_bytes = 0
        self._takes_chunks = self._chunked = False

    @property
    def may_hear_more(self) -> bool:
        """Whether the client may still be sending."""
        return self._too_much or self.connection.their_state not in (h11.DONE, h11.MUST_CLOSE)

    async def handle(self, event: Event) -> None:
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        if self._paused:
            await self._hold(event.data)
            return
        if data := self._without_blank_lines(event.data):
            self.connection.receive_data(data)
        await self._handle_events()

    async def _hold(self, data: bytes) -> None:
        self._held_bytes += len(data)
        if not self._too_much:
            self.connection.receive_data(data)
        elif self._held_bytes > MAX_PIPELINED_BYTES + MAX_DROPPED_BYTES:
            await self.send(Closed())
        await trio.lowlevel.checkpoint_if_cancelled()

    @property
    def _too_much(self) -> bool:
        return self._paused and self._held_bytes > MAX_PIPELINED_BYTES

    def _without_blank_lines(self, data: bytes) -> bytes:
        """Empty lines before a request are no request (RFC 9112, 2.2)."""
        between = self.connection.their_state is h11.IDLE and not self.connection.trailing_data[0]
        return data.lstrip(b"\r\n") if between else data

    async def _handle_events(self) -> None:
        parsing = self._parsing = self._parsing or trio.Lock()
        async with parsing:
            try:
                await super()._handle_events()
            except _PausedError:
                self._paused = True
                self._held_bytes = len(self.connection.trailing_data[0])
        if not parsing.locked():
            self._parsing = None

    async def _maybe_recycle(self) -> None:
        if self._too_much:
            await self._close_stream()
            await self.send(Closed())
            return
        await super()._maybe_recycle()
        if self._paused and self.connection.our_state is h11.IDLE:
            self._paused = False
            self._skip_blank_lines()
            self.task_group.spawn(self._handle_events)

    def _skip_blank_lines(self) -> None:
        """A stray line break after a body would be taken for a bad request."""
        held = self.connection.trailing_data[0]
        if held.startswith((b"\r", b"\n")):
            fresh = h11.Connection(h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size)
            if rest := held.lstrip(b"\r\n"):
                fresh.receive_data(rest)
            self.connection = fresh

    async def _check_protocol(self, event: h11.Request) -> None:
        """HTTP/2 without TLS only where it is asked for, and as a connection's first words; never by an upgrade."""
        if event.method == b"PRI" and self._allow_h2c and self.keep_alive_requests == 0:
            await super()._check_protocol(event)
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _create_stream(self, request: h11.Request) -> None:
        target, host = origin_form(request.target)
        objected = objection(request.method, target, request.headers, self._body_bytes)
        if request.method == b"PRI":
            objected = _refused(400, "HTTP/2 is not served on this connection", "http_version")
        elif request.http_version[:2] != b"1.":
            # The answer comes in the version that is served (RFC 9110, 15.6.6).
            objected = _refused(505, "this connection speaks HTTP/1.1", "http_version")
        if objected is not None:
            await self._answer(objected, head_only=request.method == b"HEAD")
            await self.send(Closed())
            return
        kept = own_headers(request.headers, host)
        if len(kept) < len(request.headers) or target != request.target:
            request = h11.Request(method=request.method, target=target, headers=kept, http_version=request.http_version)
        self._takes_chunks = request.http_version >= b"1.1" and request.method != b"HEAD"
        await super()._create_stream(request)

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response) and (self.context.terminated.is_set() or self._too_much):
            # The connection is closing: the client should not send its next request here.
            # Of the app's own, or of its refusal, there may be one already.
            closing = [*(pair for pair in event.headers if pair[0].lower() != b"connection"), (b"connection", b"close")]
            event = Response(stream_id=event.stream_id, headers=closing, status_code=event.status_code)
        if isinstance(event, Response):
            self._chunked = self._sends_chunks(event)
        await super().stream_send(event)

    def _sends_chunks(self, response: Response) -> bool:
        """Whether h11 will send this one's body in chunks.  No wrongly: then it is asked for each part of the body."""
        return (
            self._takes_chunks
            and response.status_code >= 200
            and response.status_code not in (204, 304)
            and all(name.lower() != b"content-length" for name, _ in response.headers)
        )

    def body_at_once(self, data: bytes) -> Awaitable[None] | None:
        """Send a part of the body now, as far as the kernel takes it.  None: all; else the rest has to be awaited.

        A chunk has no state, so h11 needn't hear of it: all its layers together cost more than the rest of an event.
        Raises trio.WouldBlock, with nothing sent, where the body is not sent in chunks or others are writing.
        """
        if not self._chunked or not data or self.connection.our_state is not h11.SEND_BODY:
            raise trio.WouldBlock
        return self._send_at_once(b"%x\r\n%b\r\n" % (len(data), data))

    async def _send_error_response(self, status_code: int) -> None:
        """What h11 can't parse, in the API's shape.  Never 5xx (h11 has 501 for an unknown transfer coding): these are
        for faults of ours."""
        await self._answer(
            _refused(status_code if status_code < 500 else 400, "this is not a valid HTTP request", "bad_request")
        )

    async def _answer(self, refused: Refusal, *, head_only: bool = False) -> None:
        headers, body = encoded(refused)
        headers += [(b"connection", b"close"), *self.config.response_headers("h11")]
        await self._send_h11_event(h11.Response(status_code=refused.status, headers=headers))
        if not head_only:
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class H2(H2Protocol):
    """HTTP/2 in which a stream can fail, stall or be refused alone, and nobody sends frames for nothing for ever."""

    def __init__(self, *args: Any, body_bytes: int, stall_s: float) -> None:
        super().__init__(*args)
        self._body_bytes = body_bytes
        self._stall_s = stall_s
        self._calm = Calm()
        self._unyielded = 0
        self._moved = trio.lowlevel.ParkingLot()
        # Streams whose request isn't whole.
        self._uploading: set[int] = set()
        self._waiting: set[tuple[int, trio.CancelScope]] = set()
        # Without ENABLE_CONNECT_PROTOCOL, which Hypercorn would announce.
        self.connection.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: self.config.h2_max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: self.config.h2_max_header_list_size,
            },
        )

    @property
    def may_hear_more(self) -> bool:
        """Whether the client may still be sending."""
        return True

    async def handle(self, event: Event) -> None:
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        for start in range(0, len(event.data), SLICE_BYTES):
            if not self.closed:
                await self._handle_slice(event.data[start : start + SLICE_BYTES])
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _handle_slice(self, data: bytes) -> None:
        self._unyielded += self._calm.hear(data)
        if self._calm.lost:
            self.connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            await self._flush()
            await self.send(Closed())
            return
        await super().handle(RawData(data))
        if self._unyielded >= YIELD_AFTER:
            self._unyielded = 0
            await trio.lowlevel.checkpoint()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for number, event in enumerate(events, 1):
            if self.closed:
                break
            await self._handle_event(event)
            if number % YIELD_AFTER == 0:
                await trio.lowlevel.checkpoint()
        await self._flush()

    async def _flush(self) -> None:
        if data := self.connection.data_to_send():
            self._calm.send(data)
            await self.send(RawData(data))
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _handle_event(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived() if self.context.terminated.is_set():
                # Not the plain reset that it would get: this code says that the request may be sent again elsewhere.
                self._reset(event.stream_id, ErrorCodes.REFUSED_STREAM)
                await self._flush()
                return
            case h2.events.RequestReceived():
                self._uploading.add(event.stream_id)
            case h2.events.StreamEnded() | h2.events.StreamReset():
                self._uploading.discard(event.stream_id)
            case h2.events.DataReceived() if event.stream_id not in self.streams:
                # More of a body whose answer has been given.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                await self._flush()
                return
            case h2.events.DataReceived() if event.data:
                self._calm.used()
        await super()._handle_events([event])
        if isinstance(event, h2.events.RequestReceived | h2.events.StreamReset):
            # Hypercorn says "busy" of a request that was refused, and nothing of one that was reset.
            await self.send(Updated(idle=self.idle))

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self.connection.reset_stream(stream_id, code)
        except h2.exceptions.ProtocolError:
            # It is closed already, or the whole connection is.
            return

    async def _priority_updated(self, event: h2.events.PriorityUpdated) -> None:  # noqa: ARG002
        """All streams are equal; the tree of priorities (deprecated by RFC 9113) only cost memory."""
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        pseudo = {name: value for name, value in request.headers if name.startswith(b":")}
        method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
        # Never an address here (RFC 9113, 8.3.1).
        path = path if _PATH.fullmatch(path) else b""
        objected = objection(method, path, request.headers, self._body_bytes)
        if objected is None:
            await super()._create_stream(request)
        else:
            await self._refuse(request.stream_id, objected, head_only=method == b"HEAD")

    async def _refuse(self, stream_id: int, refused: Refusal, *, head_only: bool) -> None:
        headers, body = encoded(refused)
        status = [(b":status", b"%d" % refused.status), *headers, *self.config.response_headers("h2")]
        # The same read may have brought its end, or the connection's.
        with suppress(h2.exceptions.ProtocolError):
            fits = not head_only and len(body) <= self.connection.local_flow_control_window(stream_id)
            self.connection.send_headers(stream_id, status, end_stream=not fits)
            if fits:
                self.connection.send_data(stream_id, body, end_stream=True)
        self._stop_upload(stream_id)
        await self._flush()

    def _stop_upload(self, stream_id: int) -> None:
        """The answer is whole: what is left of the request is not wanted (RFC 9113, 8.1)."""
        if stream_id in self._uploading:
            self._uploading.discard(stream_id)
            self._reset(stream_id, ErrorCodes.NO_ERROR)

    async def stream_send(self, event: StreamEvent) -> None:
        match event:
            case Response():
                headers = [(name, value) for name, value in event.headers if name.lower() not in _OF_THE_HOP]
                await super().stream_send(
                    Response(stream_id=event.stream_id, headers=headers, status_code=event.status_code)
                )
            case Body() | EndBody():
                await self._send_bounded(event)
            case StreamClosed():
                self._calm.answered()
                await self._end_whole(event.stream_id)
                await super().stream_send(event)
            case _:
                await super().stream_send(event)

    async def _send_bounded(self, event: StreamEvent) -> None:
        """Wait for the client's window, but not for ever: one that takes nothing loses this stream."""
        with trio.CancelScope(deadline=trio.current_time() + self._stall_s) as scope:
            waiting = (event.stream_id, scope)
            self._waiting.add(waiting)
            try:
                await super().stream_send(event)
                await self._until_taken(event.stream_id)
            finally:
                self._waiting.discard(waiting)
        if scope.cancelled_caught:
            await self._end_whole(event.stream_id)
            await self._close_stream(event.stream_id)
            await self.send(Updated(idle=self.idle))

    async def _until_taken(self, stream_id: int) -> None:
        """Hypercorn's buffer holds up its writer, but not while the client's window is closed."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while (buffer := self.stream_buffers.get(stream_id)) and len(buffer.buffer) >= BUFFER_HIGH_WATER:
            await self._moved.park()

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers.get(stream_id)
        before = len(buffer.buffer) if buffer else 0
        await super()._send_data(stream_id)
        self._moved.unpark_all()
        if buffer and len(buffer.buffer) < before:
            for waiting_id, scope in self._waiting:
                if waiting_id == stream_id:
                    scope.deadline = trio.current_time() + self._stall_s
        if stream_id not in self.stream_buffers:
            self._stop_upload(stream_id)
            await self._flush()

    async def _end_whole(self, stream_id: int) -> None:
        """Reset a stream whose answer was begun and isn't whole; Hypercorn would leave its client waiting."""
        buffer = self.stream_buffers.get(stream_id)
        if buffer is None or buffer.complete:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        self._reset(stream_id, ErrorCodes.INTERNAL_ERROR)
        await self._flush()
        # The sending task finds the stream closed and clears up behind it.
        await buffer.close()
        await self._window_updated(stream_id)
