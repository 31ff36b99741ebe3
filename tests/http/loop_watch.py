"""A watch on the event loop: how long it was kept from everybody else.  For tests on the real clock."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
from attrs import define

TICK_S = 0.002
"""How often it looks; what blocks for less is not seen."""


@define
class LoopWatch:
    """`blocked_s`: the longest that a task which was due had to wait because this process was busy, in seconds.

    `late_s` is the same by the clock on the wall, which on a busy machine says more about the others.
    """

    blocked_s: float = 0.0
    late_s: float = 0.0

    async def run(self) -> None:
        while True:
            began, used = time.perf_counter(), time.process_time()
            await trio.sleep(TICK_S)
            late = time.perf_counter() - began - TICK_S
            self.late_s = max(self.late_s, late)
            # What blocks the loop uses the processor: in it, or in a thread that keeps the interpreter's lock.
            self.blocked_s = max(self.blocked_s, min(late, time.process_time() - used))


async def least_blocked(work: Callable[[], Awaitable[object]], *, enough_s: float, tries: int = 4) -> float:
    """The least that `work` blocked the loop (seconds), over a few tries: a busy machine only ever adds to it."""
    least = math.inf
    for _ in range(tries):
        async with watched_loop() as watch:
            await work()
        least = min(least, watch.blocked_s)
        if least < enough_s:
            break
    return least


@asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopWatch]:
    """Watch the loop for as long as the block takes."""
    watch = LoopWatch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        yield watch
        nursery.cancel_scope.cancel()
