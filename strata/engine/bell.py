"""A bell that any thread rings and one Trio task hears.

A room of its own because the operating systems differ here: an eventfd where there is one, else a socket pair.  Knows
no message: what the ringing means lies elsewhere.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from typing import Protocol

import trio


class Bell(Protocol):
    """Rings that nobody has heard yet count as one."""

    def ring(self) -> None:
        """From any thread; never blocks."""
        ...

    async def wait(self) -> None:
        """Until it was rung since the last wait."""
        ...

    def close(self) -> None: ...


class SocketBell:
    """Two ends of a socket pair; works everywhere."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def ring(self) -> None:
        # A full buffer means that it has been rung and not been heard.
        with suppress(BlockingIOError):
            self._far.send(b"\0")

    async def wait(self) -> None:
        await trio.lowlevel.wait_readable(self._near)
        self._near.recv(65536)

    def close(self) -> None:
        self._near.close()
        self._far.close()


if sys.platform == "linux":

    class EventBell:
        """An eventfd: one descriptor, eight bytes a ring."""

        def __init__(self) -> None:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

        def ring(self) -> None:
            with suppress(BlockingIOError):
                os.eventfd_write(self._fd, 1)

        async def wait(self) -> None:
            await trio.lowlevel.wait_readable(self._fd)
            os.eventfd_read(self._fd)

        def close(self) -> None:
            os.close(self._fd)


def make_bell() -> Bell:
    """The cheapest that this system has."""
    if sys.platform == "linux" and hasattr(os, "eventfd"):
        return EventBell()
    return SocketBell()
