"""What a server writes on its terminal, written by threads of their own: a reader that stops stops no server.

A room of its own because a pipe may be full at any time and for ever: whoever writes waits for nothing, what waits is
bounded, and what is too much is counted and not kept.  Knows no log and no server.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Final, TextIO

from strata.cli.say import hush

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WAITING_BYTES: Final = 1 << 20
"""That wait to be written, for each stream; as much again may be in the midst of it."""
PATIENCE_S: Final = 1.0
"""For what still waits at the end."""


@contextmanager
def outlets() -> Iterator[None]:
    """For the length of the block, `sys.stdout` and `sys.stderr` are streams that never wait and never fail."""
    outlets = [(stream, Outlet(stream.fileno())) for stream in (sys.stdout, sys.stderr) if _has_file(stream)]
    by_stream = {id(stream): _as_text(outlet, stream) for stream, outlet in outlets}
    with ExitStack() as redirected:
        redirected.enter_context(redirect_stdout(by_stream.get(id(sys.stdout), sys.stdout)))
        redirected.enter_context(redirect_stderr(by_stream.get(id(sys.stderr), sys.stderr)))
        try:
            yield
        finally:
            deadline = time.monotonic() + PATIENCE_S
            for stream, outlet in outlets:
                if not outlet.finish(deadline):
                    # Nor shall what others say after us wait for it.
                    hush(stream)


def _has_file(stream: TextIO | None) -> bool:
    """Not so where we were started without one, or it is memory."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _as_text(outlet: Outlet, stream: TextIO) -> TextIO:
    """Hands on whole lines."""
    return io.TextIOWrapper(outlet, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)


class Outlet(io.BufferedIOBase):
    """Takes bytes at once, from any thread; a thread of its own writes them to the file, in their order."""

    def __init__(self, file: int, *, waiting_bytes: int = WAITING_BYTES) -> None:
        self._file = file
        self.name = file
        self._most = waiting_bytes
        # Reentrant: a finaliser that warns may run in the midst of a write.
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._size = 0
        self._dropped = 0
        """Lines, after all that waits."""
        self._finished = False
        # The process doesn't wait for it.
        self._thread = threading.Thread(target=self._keep_writing, name="outlet", daemon=True)
        self._thread.start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file

    def isatty(self) -> bool:
        return os.isatty(self._file)

    def write(self, data: ReadableBuffer, /) -> int:
        taken = bytes(data)
        with self._changed:
            # Once a line is lost the next ones are too, up to the place where it is said.
            if self._dropped or self._size + len(taken) > self._most or self._finished:
                self._dropped += taken.count(b"\n")
            else:
                self._waiting.append(taken)
                self._size += len(taken)
            self._changed.notify()
        return len(taken)

    def finish(self, deadline: float) -> bool:
        """Nothing more is taken; waits for what is left, and returns whether all was written by then.  `deadline`: of
        `time.monotonic`."""
        with self._changed:
            self._finished = True
            self._changed.notify()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _keep_writing(self) -> None:
        lost = 0
        while waited := self._take():
            data, dropped = waited
            rest = self._write_out(_told(lost) + data + _told(dropped))
            # What a full disk did not take is said when it takes something again.
            lost = lost + data.count(b"\n") + dropped if rest else 0

    def _take(self) -> tuple[bytes, int] | None:
        """All that waits, and how many lines were dropped after it; None: that was all."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._dropped or self._finished)
            taken = b"".join(self._waiting), self._dropped
            self._waiting, self._size, self._dropped = [], 0, 0
        return taken if any(taken) else None

    def _write_out(self, data: bytes) -> bytes:
        """What can't be written of it: the file is closed, or full."""
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:
                # Another process has made it so, for all who have it.
                select.select([], [self._file], [])
            except OSError:
                break
        return data


def _told(lost: int) -> bytes:
    return f"strata: lines that could not be written and are lost: {lost}\n".encode() if lost else b""
