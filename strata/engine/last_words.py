"""What an engine's process writes on its output: passed on to the log line by line, and the end of it kept.

A room of its own because these are bytes of anybody's, a native library's too: of any length, in any encoding, cut
anywhere.  Knows no process.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from strata.errors import ConfigError

KEPT_BYTES: Final = 4096
"""A fault's traceback of all threads, and what was said before it."""
LONGEST_LINE: Final = 2048
"""Bytes; what is longer is passed on in pieces."""
_OF_MEMORY: Final = re.compile(
    r"memoryerror|bad_alloc|memory allocation|(?:can(?:no|')t|unable to|failed to) (?:allocate|start new thread)"
    r"|out of memory|memory exhausted",
    re.IGNORECASE,
)
"""As Python, C's and C++'s libraries, the loader, OpenBLAS and Rust say that there is none."""


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


def tells_of_memory(text: str) -> bool:
    """Whether it says that memory ran out.

    >>> tells_of_memory("OpenBLAS error: Memory allocation still failed after 10 retries, giving up.")
    True
    """
    return _OF_MEMORY.search(text) is not None


def too_little_memory(mib: int, how: str) -> ConfigError:
    """`how` it showed, while the engine was built with no more than that."""
    what_to_do = "raise it, or set a smaller context, kv_mib or arena_mib"
    return ConfigError(
        "engine_memory_mib", f"memory ran out at {mib} MiB as the engine was built ({how}); {what_to_do}"
    )
