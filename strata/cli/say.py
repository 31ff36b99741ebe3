"""What the server says to its terminal, which may be gone: a closed pipe or a full disk ends no server."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO


def say(text: str, stream: TextIO | None) -> None:
    """One line or several, to whoever reads them.  `stream` is None where we were started without one."""
    if stream is None:
        return
    try:
        print(text, file=stream, flush=True)
    except (OSError, ValueError):
        hush(stream)


def hush_if_broken(stream: TextIO | None) -> None:
    """At the end: what could not be written isn't tried again by the interpreter, which would change the exit code."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        hush(stream)


def hush(stream: TextIO) -> None:
    """Let what is still unwritten, and all that follows, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
