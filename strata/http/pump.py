"""Responses that are pumped: an ordinary coroutine writes the body.  Knows Quart; nothing of sockets or of chats.

Not an async generator: a cancel scope around a `yield` can cut a stream without anybody noticing.  In a pump,
nurseries, deadlines and heartbeats are as safe as anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import trio
from quart import Request
from quart.utils import encode_headers
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioResponse

from strata.http.exchange import AtOnce, Breath, Hearing, Sender

Pump: TypeAlias = "Callable[[Writer], Awaitable[TrioResponse | None]]"

STREAM_HEADERS: Final[Mapping[str, str]] = {"cache-control": "no-store", "x-accel-buffering": "no"}


class PumpResponse(TrioResponse):
    """A response whose body is what `pump(write)` writes.

    The status line goes out with the first write: until then the pump may return another response (an error), which is
    sent in this one's place, or raise, which is answered by the table of errors.  A pump that ends without writing
    sends an empty body; one that raises after its first write cuts the connection, so that nobody takes the half for
    the whole.
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

    def __init__(self, send: Any, response: PumpResponse) -> None:
        self._send, self._response = send, response
        self._body_at_once: AtOnce = send.body_at_once if isinstance(send, Sender) else self._part
        self._begun = trio.Event()
        self._breath = Breath()
        self.begun = False

    async def __call__(self, data: bytes) -> None:
        if not self._begun.is_set():
            await self.begin()
        rest = self._body_at_once(data)
        await (self._breath.take() if rest is None else rest)

    def at_once(self, data: bytes) -> Awaitable[None] | None:
        """Write without waiting.  None: the bytes are the kernel's.  Else what is returned has to be awaited, soon.

        It is no checkpoint.
        """
        return self._body_at_once(data) if self._begun.is_set() else self(data)

    async def begin(self) -> None:
        """Send the status line: once, by whoever writes first, while the others wait for it."""
        if self.begun:
            await self._begun.wait()
            return
        self.begun = True
        headers = encode_headers(self._response.headers)
        try:
            await self._send({"type": "http.response.start", "status": self._response.status_code, "headers": headers})
        finally:
            self._begun.set()

    async def _part(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


class _Alone:
    """In place of the nursery that Quart-Trio ends when the answer is given."""

    cancel_scope: Final = trio.CancelScope()


_ALONE: Final[Any] = _Alone()


class PumpConnection(TrioASGIHTTPConnection):
    """What serves one request of a Quart-Trio app, pumped responses too."""

    async def __call__(self, receive: Any, send: Any) -> None:
        """Its answer is made in the task that it came in; another takes the body, and waits for the client to leave.

        There is no other where the body came with the head and the server tells a leaving by itself.
        """
        request = self._create_request_from_scope(send)
        if isinstance(receive, Hearing) and (parts := receive.take_whole()) is not None:
            for message in parts:
                request.body.append(message["body"])
            request.body.set_complete()
            await self.handle_request(_ALONE, request, send)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, nursery, request, receive)
            await self.handle_request(nursery, request, send)

    async def _hear(self, nursery: trio.Nursery, request: Request, receive: Any) -> None:
        if not isinstance(receive, Hearing):
            await self.handle_messages(nursery, request, receive)
            return
        # Whose client leaves is cancelled; there is nothing to wait for behind the body.
        while True:
            message = await receive()
            request.body.append(message["body"])
            if not message["more_body"]:
                request.body.set_complete()
                return

    async def _send_response(self, send: Any, response: Any) -> None:
        if isinstance(response, PumpResponse):
            await self._send_pumped(send, response)
        else:
            await super()._send_response(send, response)

    async def _send_pumped(self, send: Any, response: PumpResponse) -> None:
        write = Writer(send, response)
        instead = await response.pump(write)
        if instead is not None and not write.begun:
            await super()._send_response(send, instead)
            return
        if not write.begun:
            await write.begin()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def use_pumps(app: QuartTrio) -> None:
    """Let this app answer with pumped responses."""
    app.asgi_http_class = PumpConnection
