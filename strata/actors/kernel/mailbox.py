"""Where an actor's messages wait.  Knows order and one reader; not who sends, nor what a message means.

Telling is synchronous and never waits, so nobody ever waits for a slow reader.  A reader takes all that is there in
one turn of the loop, which is what makes a message cheap.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Generic, TypeVar

import trio

from strata.actors.kernel.reader import LoneReader
from strata.errors import Overloaded

M = TypeVar("M")


class Mailbox(LoneReader, Generic[M]):
    """First in, first out, for one reader.

    Closed, it takes nothing more: what is told is dropped and counted, not an error, for the sender can't know.  What
    it holds can still be taken; after the last of it a reader gets `trio.ClosedResourceError`.

    Each method that waits leaves every message in place when it is cancelled.
    """

    __slots__ = ("_closed", "_dropped", "_limit", "_messages")

    def __init__(self, limit: int | None = None) -> None:
        """`limit`: how many messages it holds before `tell` raises Overloaded; None: any number."""
        if limit is not None and limit < 1:
            raise ValueError(f"a mailbox of {limit} messages can hold none")
        super().__init__()
        # Nearly always empty or taken whole, where a deque's first block would be most of a mailbox.
        self._messages: list[M] = []
        self._limit = limit
        self._closed = False
        self._dropped = 0

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"<Mailbox {len(self._messages)} waiting{closed}>"

    @property
    def depth(self) -> int:
        """How many messages wait."""
        return len(self._messages)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def dropped(self) -> int:
        """How many came after it was closed."""
        return self._dropped

    def tell(self, message: M) -> None:
        """Put a message at the end.  Raises Overloaded when it is full; dropped when it is closed."""
        if self._closed:
            self._dropped += 1
            return
        if self._limit is not None and len(self._messages) >= self._limit:
            raise Overloaded(f"{self._limit} messages wait already")
        self._messages.append(message)
        if self._reader is not None:
            self._wake()

    def take_nowait(self) -> M:
        """The oldest message.  Raises trio.WouldBlock when there is none, ClosedResourceError when none can come."""
        if not self._messages:
            self._must_be_open()
            raise trio.WouldBlock
        return self._messages.pop(0)

    async def receive(self) -> M:
        """Wait for a message and take it.  Raises ClosedResourceError, BusyResourceError."""
        while True:
            await self._filled()
            if self._messages:
                return self._messages.pop(0)
            self._must_be_open()

    async def receive_batch(self) -> list[M]:
        """Wait for a message and take all that are there, at least one.  Raises as `receive`."""
        while True:
            await self._filled()
            if self._messages:
                batch, self._messages = self._messages, []
                return batch
            self._must_be_open()

    def close(self) -> None:
        """Take nothing more from now on.  What is there stays; closing twice does nothing."""
        self._closed = True
        if self._reader is not None:
            self._wake()

    def _filled(self) -> Awaitable[Any]:
        """To be awaited at once, and looked again then."""
        return self._read_by_one(bool(self._messages) or self._closed, "mailbox")

    def _must_be_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the mailbox is closed and empty")
