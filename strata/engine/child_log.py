"""Where the lines go that an engine's process writes: into the server's log, or into a file of their own.

A room of its own because the file is an operator's: it may be moved away and be full.  Knows no process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final

from strata.errors import ConfigError

_log: Final = logging.getLogger(__name__)

Write = Callable[[int, str], object]
"""A line and its level.  Never raises: a line that can't be written is no reason to die."""


@contextmanager
def child_log(path: Path | None, name: str) -> Iterator[Write]:
    """For the length of the block.  `name` stands before each line.  Raises ConfigError: the file can't be written."""
    if path is None:
        yield lambda level, line: _log.log(level, "%s: %s", name, line)
        return
    try:
        # Opened again when it was moved away, as log rotation does.
        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError("engine_log", f"{path} can't be written ({error.strerror or error})") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with closing(handler):
        yield lambda level, line: handler.handle(logging.LogRecord(name, level, "", 0, line, None, None))
