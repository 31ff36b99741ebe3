"""What an engine's process writes on its output: passed on to the log line by line, and the end of it kept.

A room of its own because these are bytes of anybody's, a native library's too: of any length, in any encoding, cut
anywhere.  Knows no process.
"""

from __future__ import annotations

import logging
from typing import Final

KEPT_BYTES: Final = 4096
"""A fault's traceback of all threads, and what was said before it."""
LONGEST_LINE: Final = 2048
"""Bytes; what is longer is passed on in pieces."""


class LastWords:
    def __init__(self) -> None:
        self._tail = b""
        self._line = b""

    @property
    def text(self) -> str:
        """The last that was written, at most 4 KiB, in whole lines where there are any."""
        kept = self._tail
        if len(kept) == KEPT_BYTES and b"\n" in kept:
            kept = kept.split(b"\n", 1)[1]
        return kept.decode("utf-8", "replace").strip()

    def feed(self, data: bytes) -> list[str]:
        """The lines that are whole with it."""
        self._tail = (self._tail + data)[-KEPT_BYTES:]
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > LONGEST_LINE:
            lines.append(self._line)
            self._line = b""
        return [part.decode("utf-8", "replace") for line in lines for part in _pieces(line) if part.strip()]


def _pieces(line: bytes) -> list[bytes]:
    return [line[start : start + LONGEST_LINE] for start in range(0, len(line), LONGEST_LINE)]


def level_of(line: str) -> tuple[int, str]:
    """A line of the child's own log begins with its level; what a library writes past it is a warning."""
    name, _, rest = line.partition(" ")
    level = logging.getLevelNamesMapping().get(name)
    return (logging.WARNING, line) if level is None else (level, rest)
