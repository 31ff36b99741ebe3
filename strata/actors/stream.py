"""An answer between its writer and its reader.  Knows order and the one end; not what wrote it or who reads.

The writer never waits.  The reader takes all that is ready at once, so a slow one costs memory bounded by the
answer's length and nobody's time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from strata.errors import StrataError
from strata.messages import Delta, Figures, Summary


class Feed:
    """The writer's end: deltas, then exactly one end.  For one reader at a time."""

    __slots__ = ("_reader", "ended", "error", "items")

    def __init__(self) -> None:
        # Mostly empty: a deque would be ten times the size.
        self.items: list[Delta | Summary] = []
        self.error: StrataError | None = None
        self.ended = False
        self._reader: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        return f"<Feed {len(self.items)} ready{', ended' if self.ended else ''}>"

    def take(self) -> list[Delta | Summary]:
        """All that is ready."""
        taken, self.items = self.items, []
        return taken

    def push(self, delta: Delta) -> None:
        self._must_be_open()
        self.items.append(delta)
        self._wake()

    def complete(self, summary: Summary) -> None:
        self._must_be_open()
        self.items.append(summary)
        self._end()

    def fail(self, error: StrataError) -> None:
        """End with an error, which the reader gets after what is ready."""
        self._must_be_open()
        self.error = error
        self._end()

    def filled(self) -> Awaitable[Any]:
        """What to await, at once, until there is something to take or nothing can come.  Raises BusyResourceError."""
        if self._reader is not None:
            raise trio.BusyResourceError("another task reads this answer")
        if self.items or self.ended:
            return trio.lowlevel.checkpoint()
        # A checkpoint itself; another before it would have each token wake its reader twice.
        self._reader = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._abort)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _end(self) -> None:
        self.ended = True
        self._wake()

    def _must_be_open(self) -> None:
        if self.ended:
            raise RuntimeError("this answer has ended already")


class Stream:
    """An answer as its reader sees it: an async iterator of deltas, or batches of all that is ready."""

    __slots__ = ("_feed", "_figures", "id", "summary")

    def __init__(self, id: str, feed: Feed, figures: Callable[[], Figures]) -> None:
        self.id = id
        """The request's name in the actor tree: `request-7`."""
        self.summary: Summary | None = None
        """How it ended, once the last delta was taken."""
        self._feed = feed
        self._figures = figures

    def __repr__(self) -> str:
        return f"<Stream {self.id}, {self._feed!r}>"

    def figures(self) -> Figures:
        """Where it stands now, and what it took so far.  Never waits."""
        return self._figures()

    async def batch(self) -> list[Delta | Summary]:
        """All that is ready, at least one; the Summary is the last, and after it there is only `[]`.

        Raises the typed StrataError when the request failed, or was cancelled by somebody else, and BusyResourceError
        while another task waits here.
        """
        await self._feed.filled()
        batch = self._feed.take()
        if self._feed.error is not None and not batch:
            raise self._feed.error
        if batch and isinstance(batch[-1], Summary):
            self.summary = batch[-1]
        return batch

    async def text(self) -> str:
        """The rest of the answer, all of it.  Raises as `batch`."""
        return "".join([delta.text async for delta in self])

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Delta:
        """The next delta; ends at the Summary, which is in `summary` then.  Raises as `batch`."""
        await self._feed.filled()
        if not self._feed.items:
            if self._feed.error is not None:
                raise self._feed.error
            raise StopAsyncIteration
        item = self._feed.items.pop(0)
        if isinstance(item, Delta):
            return item
        self.summary = item
        raise StopAsyncIteration
