"""The bytes of one client's socket: what is written is bounded in time and can be cancelled.  Knows no HTTP and no TLS.

Trio's own socket stream waits for a slow reader for ever, and a cancel in the middle leaves half an event on the
wire.  This one gives the client `stall_s` to take *something*, and gives what began 0.2 s to become whole.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from typing import Final

import trio

FINISH_S: Final = 0.2
"""How long a cancelled write may take to end whole; then the connection is reset."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Wire(trio.abc.HalfCloseableStream):
    """A connected TCP or unix socket; takes ownership of it."""

    def __init__(self, connected: socket.socket, *, stall_s: float) -> None:
        self._plain = trio.SocketStream(trio.socket.from_stdlib_socket(connected))
        self._direct = connected
        self._stall_s = stall_s
        self._left = memoryview(b"")

    def __repr__(self) -> str:
        return f"<Wire {self._direct.fileno()}, {len(self._left)} bytes to send>"

    @property
    def socket(self) -> trio.socket.SocketType:
        return self._plain.socket

    @property
    def closed(self) -> bool:
        return self._direct.fileno() < 0

    def send_nowait(self, data: bytes | memoryview) -> memoryview:
        """Hand to the kernel what it takes at once; return the rest.  Raises BrokenResourceError."""
        left = memoryview(data)
        try:
            return left[self._direct.send(left, socket.MSG_NOSIGNAL) :]
        except (BlockingIOError, InterruptedError):
            return left
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it.  Raises BrokenResourceError when the client is gone or takes nothing for too long.

        When cancelled, what is left may still go out for a moment, and if it does this returns as if nothing had been:
        the cancel meets its task at the next checkpoint.  Else the connection is reset, because the protocol above has
        already counted all of it as sent.
        """
        self._left = memoryview(data)
        try:
            await self._drain()
        except trio.Cancelled:
            with trio.move_on_after(FINISH_S, shield=True):
                await self._drain()
            if self._left:
                self.reset()
                raise
        finally:
            self._left = memoryview(b"")

    async def _drain(self) -> None:
        while True:
            self._left = self.send_nowait(self._left)
            if not self._left:
                break
            before = self._queued()
            with trio.move_on_after(self._stall_s) as waited:
                await self._writable()
            # A slow reader may take some, and yet not enough for the kernel to call the socket writable.
            if waited.cancelled_caught and self._queued() >= before:
                self.reset()
                raise trio.BrokenResourceError(f"the client took nothing for {self._stall_s:g} s")
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _queued(self) -> int:
        """Bytes that the kernel holds and the client has not taken."""
        if self.closed:
            raise trio.ClosedResourceError("the connection was closed")
        held = fcntl.ioctl(self._direct, termios.TIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", held)[0])

    async def _writable(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("the connection was closed")
        await trio.lowlevel.wait_writable(self._direct)

    async def wait_send_all_might_not_block(self) -> None:
        await self._writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._plain.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._plain.send_eof()

    async def aclose(self) -> None:
        await self._plain.aclose()

    def close(self) -> None:
        """Close at once; what the kernel already has is still sent."""
        self.socket.close()

    def reset(self) -> None:
        """Close at once; what the kernel still holds is dropped, and the client sees a reset."""
        if not self.closed:
            self._direct.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.socket.close()
