"""Responses that are pumped: an ordinary coroutine writes the body.  Knows Quart; nothing of sockets or of chats.

Not an async generator: a cancel scope around a `yield` can cut a stream without anybody noticing.  In a pump,
nurseries, deadlines and heartbeats are as safe as anywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import trio
from quart.utils import encode_headers
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioResponse

from strata.http.exchange import Sender

Write: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Send these bytes; returns when they are the kernel's.  Several tasks may write, each call stays whole."""
Pump: TypeAlias = Callable[[Write], Awaitable[TrioResponse | None]]

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


class PumpConnection(TrioASGIHTTPConnection):
    """What serves one request of a Quart-Trio app, pumped responses too."""

    async def _send_response(self, send: Any, response: Any) -> None:
        if isinstance(response, PumpResponse):
            await self._send_pumped(send, response)
        else:
            await super()._send_response(send, response)

    async def _send_pumped(self, send: Any, response: PumpResponse) -> None:
        head = _Head(send, response)
        send_part = send.body_at_once if isinstance(send, Sender) else partial(_send_part, send)

        async def write(data: bytes) -> None:
            if not head.sent.is_set():
                await head.send()
            await send_part(data)

        instead = await response.pump(write)
        if instead is not None and not head.begun:
            await super()._send_response(send, instead)
            return
        if not head.begun:
            await head.send()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_part(send: Any, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


class _Head:
    """The status line: sent once, by whoever writes first, while the others wait for it."""

    def __init__(self, send: Any, response: PumpResponse) -> None:
        self._send, self._response = send, response
        self.begun = False
        self.sent = trio.Event()

    async def send(self) -> None:
        if self.begun:
            await self.sent.wait()
            return
        self.begun = True
        headers = encode_headers(self._response.headers)
        try:
            await self._send({"type": "http.response.start", "status": self._response.status_code, "headers": headers})
        finally:
            self.sent.set()


def use_pumps(app: QuartTrio) -> None:
    """Let this app answer with pumped responses."""
    app.asgi_http_class = PumpConnection
