"""The server's end of the line to an engine's process.  Knows bytes and how many may wait; no message's meaning.

A room of its own because here `tell` must never block and nothing may grow without a bound: what the socket does not
take at once waits in order, and a child that lets too much wait is broken by name.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from typing import Any, Final

import trio

from strata.engine.wire import Frames, ToChild, encode

MAX_BACKLOG: Final = 256 << 20
"""Bytes that may wait for a child to read them: the longest prompt, fifty times."""
_READ_BYTES: Final = 1 << 16


class Line:
    """One end of a socket pair.  `tell` from the Trio thread; `keep_sending` in a task; `receive` in another."""

    def __init__(self, near: socket.socket, max_backlog: int) -> None:
        near.setblocking(False)
        self._near = near
        self._frames = Frames()
        self._waiting: deque[memoryview] = deque()
        self._backlog = 0
        self._max_backlog = max_backlog
        self._more = trio.Event()

    def __repr__(self) -> str:
        return f"<Line: {self._backlog} bytes wait>"

    @property
    def overfull(self) -> bool:
        """The child reads too little of what it is told: it will not be told more."""
        return self._backlog > self._max_backlog

    def tell(self, message: ToChild) -> None:
        """Never blocks.  What is told to a child that is gone is dropped; how it went is said otherwise.

        Raises WireError: it can't be sent.
        """
        data = memoryview(encode(message))
        if not self._waiting:
            data = self._try_send(data)
        if data and not self.overfull:
            self._waiting.append(data)
            self._backlog += len(data)
            self._more.set()

    async def keep_sending(self) -> None:
        """Sends what waits, for as long as it is let; returns when the child is gone, or `overfull`."""
        await trio.lowlevel.checkpoint()
        while not self.overfull:
            while self._waiting:
                await trio.lowlevel.wait_writable(self._near)
                self._send_waiting()
            self._more = trio.Event()
            await self._more.wait()

    def _send_waiting(self) -> None:
        while self._waiting:
            data = self._waiting[0]
            rest = self._try_send(data)
            self._backlog -= len(data) - len(rest)
            if rest:
                self._waiting[0] = rest
                return
            self._waiting.popleft()

    def _try_send(self, data: memoryview) -> memoryview:
        """What the socket did not take."""
        try:
            while data:
                data = data[self._near.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            # It is gone.
            return data[:0]
        return data

    async def receive(self) -> list[Any]:
        """The next messages, at least one; none: the child has said all.  Raises WireError."""
        while True:
            await trio.lowlevel.wait_readable(self._near)
            try:
                data = self._near.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                data = b""
            if not data:
                return []
            self._frames.feed(data)
            if messages := self._take_all():
                return messages

    def _take_all(self) -> list[Any]:
        messages: list[Any] = []
        while (message := self._frames.take()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        with suppress(OSError):
            self._near.close()
