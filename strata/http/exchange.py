"""One request and its answer, between a protocol and the app.  Knows ASGI messages; no socket and no HTTP syntax.

What a client may cost is counted here, as its bytes arrive and not when the app asks for them: a body that is too large
or too slow ends the app's call, a client that left cancels it, and an app that fails is answered for and hurts nobody.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from time import perf_counter
from typing import Any, Final, TypeAlias

import trio
from attrs import frozen
from hypercorn.trio.task_group import TaskGroup

from strata.errors import InvalidRequest, ShuttingDown
from strata.http.errors import BodyTooLarge, ErrorAnswer, ErrorBody, Refusal, refusal

Message: TypeAlias = Any
"""An ASGI message."""
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
AtOnce: TypeAlias = Callable[[bytes], Awaitable[None] | None]
"""Sends a part of a body in the call itself.  None: all of it went; else what is left of it has to be awaited."""

PART_BYTES: Final = 256
"""A body's parts (chunks, frames, or what one read brought) are at least so large, on the average."""
FREE_PARTS: Final = 4096
"""So many of a body may be smaller."""
YIELD_AFTER: Final = 32
"""Parts that came or went without waiting, before their connection lets others run."""
CLIENT_LEFT: Final = 499
"""What a log calls the status of an answer that nobody waited for."""


@frozen
class Limits:
    """What one request may cost."""

    body_bytes: int
    body_timeout_s: float


@frozen
class Access:
    """One line of an access log.  `status` is 499 where the client left before its answer was whole."""

    scope: Scope
    status: int
    seconds: float


OnAccess: TypeAlias = Callable[[Access], None]


def too_large(limit: int) -> Refusal:
    return refusal(BodyTooLarge(f"the body is larger than {limit} bytes"))


def too_many_parts() -> Refusal:
    return refusal(InvalidRequest("the body comes in too many small parts; send larger ones", code="too_many_parts"))


def too_slow(seconds: float) -> Refusal:
    text = f"the body did not arrive within {seconds:g} s"
    return Refusal(408, ErrorAnswer(ErrorBody(text, "timeout_error", None, "body_timeout")))


def encoded(refused: Refusal) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A refusal's headers and body, as a protocol sends them."""
    body = refused.encode()
    own = [(name.lower().encode(), value.encode()) for name, value in refused.headers]
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *own], body


class Breath:
    """A checkpoint after what was done at once: a cancel is met by each, and every so often the others run."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def take(self) -> Awaitable[None]:
        self._taken += 1
        deep = self._taken % YIELD_AFTER == 0
        return trio.lowlevel.checkpoint() if deep else trio.lowlevel.checkpoint_if_cancelled()


class _Done:
    """What Hypercorn awaits, of something that was done at once."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE: Final = _Done()


class Exchange:
    """Runs the app for one request.  `put` is called by the reader of the connection and never waits."""

    __slots__ = (
        "_app",
        "_at_once",
        "_call",
        "_decided",
        "_hearer",
        "_left",
        "_limits",
        "_parts",
        "_received",
        "_refused",
        "_send_on",
        "_status",
        "_unheard",
        "began",
        "scope",
    )

    def __init__(self, app: App, scope: Scope, send: Send, limits: Limits, at_once: AtOnce | None) -> None:
        self._app, self.scope, self._send_on = app, scope, send
        self.began = perf_counter()
        self._at_once = at_once
        self._limits = limits
        self._unheard: list[Message] = []
        # None: nobody waits for more of the body.
        self._hearer: trio.lowlevel.ParkingLot | None = None
        self._call = trio.CancelScope(deadline=trio.current_time() + limits.body_timeout_s)
        self._received = self._parts = 0
        self._status: int | None = None
        self._left = False
        self._refused: Refusal | None = None
        # Nothing that the client does matters any more: the answer is whole, or what it will be is decided.
        self._decided = False

    @property
    def status(self) -> int:
        """Of the answer; 499 where the client left before it was whole."""
        return CLIENT_LEFT if self._left or self._status is None else self._status

    def put(self, message: Message) -> None:
        """Take what the client did: a part of the body, its end, or that it left."""
        if self._decided:
            return
        if message["type"] == "http.disconnect":
            self._left = True
            self._cut()
            return
        self._received += len(message["body"])
        self._parts += 1
        self._refused = self._too_much()
        if self._refused is not None:
            self._cut()
            return
        if not message["more_body"]:
            self._call.deadline = math.inf
        self._unheard.append(message)
        if self._hearer is not None:
            self._hearer.unpark_all()

    def _too_much(self) -> Refusal | None:
        if self._received > self._limits.body_bytes:
            return too_large(self._limits.body_bytes)
        # Each part costs as much as hundreds of bytes do, whatever it holds.
        return too_many_parts() if self._parts > FREE_PARTS + self._received // PART_BYTES else None

    def close_down(self) -> None:
        """The server ends before this does: refused, unless its answer has begun."""
        if not self._decided and self._status is None:
            self._refused = refusal(ShuttingDown("the server is shutting down"))
            self._cut()

    def _cut(self) -> None:
        self._decided = True
        self._call.cancel()

    async def run(self, over: Callable[[Exchange], None]) -> None:
        """The whole exchange, then `over`.  Lets out only what must end the connection: Cancelled, and a protocol's own
        failure."""
        try:
            try:
                with self._call:
                    await self._app(self.scope, Hearing(self), Sender(self))
            except Exception as error:
                self._refused = refusal(error)
            await self._finish()
        finally:
            over(self)

    async def _finish(self) -> None:
        """Nobody is left without an answer, and nobody takes half of one for the whole: what is begun and not finished
        is cut by the protocol."""
        if self._call.cancelled_caught and not self._decided:
            self._refused = too_slow(self._limits.body_timeout_s)
        self._decided = True
        self._unheard.clear()
        if not self._left and self._status is None:
            await self._refuse(self._refused or refusal(RuntimeError("the app did not answer")))
        await self._send_on(None)

    def take_whole(self) -> list[Message] | None:
        """The parts of a body that has come whole already; None of any other."""
        if not self._unheard or self._unheard[-1]["more_body"]:
            return None
        taken, self._unheard = self._unheard, []
        return taken

    async def receive(self) -> Message:
        """The next part of the body.  That the client left is never told: this task is cancelled then."""
        await trio.lowlevel.checkpoint()
        while not self._unheard:
            self._hearer = self._hearer or trio.lowlevel.ParkingLot()
            await self._hearer.park()
        return self._unheard.pop(0)

    async def _refuse(self, refused: Refusal) -> None:
        headers, body = encoded(refused)
        if self.scope["http_version"].startswith("1"):
            headers.append((b"connection", b"close"))
        await self.send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def body_at_once(self, data: bytes) -> Awaitable[None] | None:
        """As the message `http.response.body` with more to come, but sent in this very call as far as that can be."""
        if self._at_once is not None and self._status is not None and not self._decided:
            try:
                return self._at_once(data)
            except trio.WouldBlock:
                pass
        return self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def send(self, message: Message) -> None:
        if self._left:
            await trio.lowlevel.checkpoint()
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._decided = True
        await self._send_on(message)


class Hearing:
    """What the app gets to receive by.  Who knows it need not wait for the client's leaving."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __call__(self) -> Awaitable[Message]:
        return self._exchange.receive()

    def take_whole(self) -> list[Message] | None:
        return self._exchange.take_whole()


class Sender:
    """What the app gets to send by.  `body_at_once` is a shorter way, which is hidden where the user's own middleware
    wraps this: that has to see every part of a body."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __call__(self, message: Message) -> Awaitable[None]:
        return self._exchange.send(message)

    @property
    def body_at_once(self) -> AtOnce:
        return self._exchange.body_at_once


class Exchanges(TaskGroup):
    """The tasks of one connection.  Hypercorn's protocols start each request's app through it."""

    def __init__(self, limits: Limits, on_access: OnAccess | None) -> None:
        super().__init__()
        self._limits = limits
        self._on_access = on_access
        # A list, which takes less than a set where one runs, as is the rule.
        self._running: list[Exchange] = []
        self._parts = 0
        self.body_at_once: AtOnce | None = None
        """The protocol's own way to do it, where it has one."""

    def close_down(self) -> None:
        """Refuse those that have no answer yet."""
        for exchange in self._running:
            exchange.close_down()

    def cancel(self) -> None:
        """End them all."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def spawn_app(self, app: Any, config: Any, scope: Any, send: Any) -> Any:  # noqa: ARG002
        await trio.lowlevel.checkpoint_if_cancelled()
        exchange = Exchange(app, scope, send, self._limits, self.body_at_once)
        self._running.append(exchange)
        self.spawn(exchange.run, self._over)

        def put(message: Message) -> Awaitable[None]:
            exchange.put(message)
            return self._breathe()

        return put

    def _breathe(self) -> Awaitable[None]:
        self._parts += 1
        return DONE if self._parts % YIELD_AFTER else trio.lowlevel.checkpoint()

    def _over(self, exchange: Exchange) -> None:
        self._running.remove(exchange)
        if self._on_access is not None:
            self._on_access(Access(exchange.scope, exchange.status, perf_counter() - exchange.began))
