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
RECEIVE_BYTES: Final = 16 * 1024
"""Read at once.  So many bytes of the smallest HTTP/2 frames take less than 20 ms to parse."""
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Wire(trio.abc.HalfCloseableStream):
    """A connected TCP or unix socket; takes ownership of it.

    Bare, because Trio's wrappers of one would be a tenth of what an open stream takes.
    """

    __slots__ = ("_left", "_stall_s", "socket")

    def __init__(self, connected: socket.socket, *, stall_s: float) -> None:
        connected.setblocking(False)
        self.socket: Final = connected
        self._stall_s = stall_s
        self._left: bytes | memoryview = b""

    def __repr__(self) -> str:
        return f"<Wire {self.socket.fileno()}, {len(self._left)} bytes to send>"

    @property
    def closed(self) -> bool:
        return self.socket.fileno() < 0

    def send_nowait(self, data: bytes | memoryview) -> memoryview:
        """Hand to the kernel what it takes at once; return the rest.  Raises BrokenResourceError."""
        left = memoryview(data)
        try:
            return left[self.socket.send(left, socket.MSG_NOSIGNAL) :]
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
            self._left = b""

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
        held = fcntl.ioctl(self.socket, termios.TIOCOUTQ, b"\0\0\0\0")
        return int(struct.unpack("i", held)[0])

    async def _writable(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("the connection was closed")
        await trio.lowlevel.wait_writable(self.socket)

    async def wait_send_all_might_not_block(self) -> None:
        await self._writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come, as soon as something has; nothing at the end.  Raises as Trio's own streams do."""
        await trio.lowlevel.checkpoint_if_cancelled()
        data = self._receive_nowait(max_bytes or RECEIVE_BYTES)
        if data is not None:
            # What is taken must not be lost to a cancel, and others have their turn.
            await trio.lowlevel.cancel_shielded_checkpoint()
        while data is None:
            await trio.lowlevel.wait_readable(self.socket)
            data = self._receive_nowait(max_bytes or RECEIVE_BYTES)
        return data

    def _receive_nowait(self, max_bytes: int) -> bytes | None:
        if self.closed:
            raise trio.ClosedResourceError("the connection was closed")
        try:
            return self.socket.recv(max_bytes)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def send_eof(self) -> None:
        """Nothing more is sent.  Raises BrokenResourceError, ClosedResourceError."""
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.ClosedResourceError("the connection was closed")
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close at once; what the kernel already has is still sent."""
        if not self.closed:
            # Who waits for it would wait for ever, or for another that gets its number.
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def reset(self) -> None:
        """Close at once; what the kernel still holds is dropped, and the client sees a reset."""
        if not self.closed:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close()
