"""Responses that are pumped: an ordinary coroutine writes the body.  Knows Quart; nothing of sockets or of chats.

Not an async generator: a cancel scope around a `yield` can cut a stream without anybody noticing.  In a pump,
nurseries, deadlines and heartbeats are as safe as anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import trio
from quart import Request
from quart.utils import encode_headers
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioResponse
from werkzeug.datastructures import Headers

from strata.http.exchange import AtOnce, Breath, Hearing, Sender

Pump: TypeAlias = "Callable[[Writer], Awaitable[TrioResponse | None]]"

STREAM_HEADERS: Final[Mapping[str, str]] = {"cache-control": "no-store", "x-accel-buffering": "no"}


class PumpResponse(TrioResponse):
    """A response whose body is what `pump(write)` writes.

    The status line goes out with the first write: until then the pump may return another response (an error), which is
    sent in this one's place with the headers that it lacks, or raise, which is answered by the table of errors.  A pump
    that ends without writing sends an empty body; one that raises after its first write cuts the connection, so that
    nobody takes the half for the whole.

    While it pumps, nothing holds the request, nor this response: an answer may last for minutes.
    """

    def __init__(
        self,
        pump: Pump,
        *,
        status: int = 200,
        headers: Mapping[str, str] = STREAM_HEADERS,
        content_type: str = "text/event-stream; charset=utf-8",
    ) -> None:
        super().__init__(None, status, dict(headers), content_type=content_type)
        self.pump = pump
        # A stream lasts as long as its answer; a client that reads nothing is dropped below.
        self.timeout = None


class Writer:
    """What a pump writes by: `await write(data)` returns when the bytes are the kernel's.

    Several tasks may write, and each call stays whole.  The first one sends the status line before it.
    """

    __slots__ = ("_beginning", "_body_at_once", "_breath", "_send", "_start", "begun")

    def __init__(self, send: Any, status: int, headers: Headers) -> None:
        self._send = send
        started = {"type": "http.response.start", "status": status, "headers": encode_headers(headers)}
        # Empty once it is out.
        self._start: dict[str, Any] = started
        self._body_at_once: AtOnce = send.body_at_once if isinstance(send, Sender) else self._part
        self._breath = Breath()
        # While the status line is under way; others wait for it.
        self._beginning: trio.Event | None = None
        self.begun = False

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Those that go out with the first write; none once they have."""
        found: list[tuple[bytes, bytes]] = self._start.get("headers", [])
        return found

    async def __call__(self, data: bytes) -> None:
        if self._start:
            await self.begin()
        rest = self._body_at_once(data)
        await (self._breath.take() if rest is None else rest)

    def at_once(self, data: bytes) -> Awaitable[None] | None:
        """Write without waiting.  None: the bytes are the kernel's.  Else what is returned has to be awaited, soon.

        It is no checkpoint.
        """
        return self(data) if self._start else self._body_at_once(data)

    async def begin(self) -> None:
        """Send the status line: once, by whoever writes first, while the others wait for it."""
        if self._beginning is not None:
            await self._beginning.wait()
            return
        self.begun = True
        self._beginning = trio.Event()
        try:
            await self._send(self._start)
        finally:
            if isinstance(self._send, Sender):
                # Hypercorn holds the message until the answer's end, for a log of its own, which is off here.
                self._start["headers"] = []
            self._start = {}
            self._beginning.set()
            self._beginning = None

    async def _part(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


class PumpConnection(TrioASGIHTTPConnection):
    """What serves one request of a Quart-Trio app, pumped responses too."""

    async def __call__(self, receive: Any, send: Any) -> None:
        """Its answer is made in the task that it came in; another takes the body, and waits for the client to leave.

        There is no other where the body came with the head and the server tells a leaving by itself.
        """
        if isinstance(receive, Hearing) and (parts := receive.take_whole()) is not None:
            await self._told(send, await self._answer(parts, send))
            return
        async with trio.open_nursery() as nursery:
            await self._told(send, await self._answer_while_it_comes(nursery, receive, send))
            nursery.cancel_scope.cancel()

    async def _answer_while_it_comes(self, nursery: trio.Nursery, receive: Any, send: Any) -> Any:
        request = self._create_request_from_scope(send)
        nursery.start_soon(self._hear, nursery, request, receive)
        return await self.app.handle_request(request)

    async def _answer(self, parts: list[Any], send: Any) -> Any:
        """The response to a request whose body is there."""
        request = self._create_request_from_scope(send)
        for message in parts:
            await _give(request, message["body"])
        request.body.set_complete()
        return await self.app.handle_request(request)

    async def _hear(self, nursery: trio.Nursery, request: Request, receive: Any) -> None:
        if not isinstance(receive, Hearing):
            await self.handle_messages(nursery, request, receive)
            return
        # Whose client leaves is cancelled; there is nothing to wait for behind the body.
        while True:
            message = await receive()
            await _give(request, message["body"])
            if not message["more_body"]:
                request.body.set_complete()
                return

    def _told(self, send: Any, response: Any) -> Awaitable[None]:
        """To be awaited: the response is sent, in the time that it may take."""
        if isinstance(response, PumpResponse):
            return self._send_pumped(send, response.pump, Writer(send, response.status_code, response.headers))
        return self._send_in_time(send, response)

    async def _send_in_time(self, send: Any, response: Any) -> None:
        timeout = getattr(response, "timeout", ...)
        seconds = self.app.config["RESPONSE_TIMEOUT"] if timeout is ... else timeout
        with trio.move_on_after(math.inf if seconds is None else seconds):
            await self._send_response(send, response)

    async def _send_pumped(self, send: Any, pump: Pump, write: Writer) -> None:
        instead = await pump(write)
        if instead is not None and not write.begun:
            for name, value in write.headers:
                instead.headers.setdefault(name.decode(), value.decode())
            await self._send_response(send, instead)
            return
        if not write.begun:
            await write.begin()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def use_pumps(app: QuartTrio) -> None:
    """Let this app answer with pumped responses."""
    app.asgi_http_class = PumpConnection


async def _give(request: Request, data: bytes) -> None:
    """More of its body.  Quart's bodies took it at once up to 0.22, and have a queue from 0.23 on."""
    body: Any = request.body
    if hasattr(body, "put"):
        await body.put(data)
    else:
        body.append(data)
        await trio.lowlevel.checkpoint()
