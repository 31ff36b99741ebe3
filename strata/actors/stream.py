"""An answer between its writer and its reader.  Knows order and the one end; not what wrote it or who reads.

The writer never waits.  The reader takes all that is ready at once, so a slow one costs memory bounded by the
answer's length and nobody's time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from strata.actors.kernel import LoneReader
from strata.errors import StrataError
from strata.messages import Delta, Figures, Summary


class Feed(LoneReader):
    """The writer's end: deltas, then exactly one end.  For one reader at a time."""

    __slots__ = ("ended", "error", "items")

    def __init__(self) -> None:
        super().__init__()
        # Mostly empty: a deque would be ten times the size.
        self.items: list[Delta | Summary] = []
        self.error: StrataError | None = None
        self.ended = False

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
        return self._read_by_one(bool(self.items) or self.ended, "answer")

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
