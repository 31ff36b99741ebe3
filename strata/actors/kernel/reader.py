"""The one task that waits for something to read.  Knows how to put it to sleep and to wake it; not for what.

A room of its own because mailboxes and answers wait alike, once for each message and each token: it is a base class
and not a part, so that it costs an object less for each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import trio


class LoneReader:
    """What one task at a time may wait at."""

    __slots__ = ("_reader",)

    def __init__(self) -> None:
        self._reader: trio.lowlevel.Task | None = None

    def _read_by_one(self, there: bool, what: str) -> Awaitable[Any]:
        """To be awaited at once, and looked again then; a checkpoint where something is `there`.

        No coroutine: it would be gone through at each wake.  Raises BusyResourceError: another task waits at `what`.
        """
        if self._reader is not None:
            raise trio.BusyResourceError(f"another task reads this {what}")
        if there:
            return trio.lowlevel.checkpoint()
        # A checkpoint itself; another before it would have each message wake its reader twice.
        self._reader = trio.lowlevel.current_task()
        return trio.lowlevel.wait_task_rescheduled(self._abort)

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            trio.lowlevel.reschedule(reader)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED
