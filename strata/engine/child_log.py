"""Where the lines go that an engine's process writes: into the server's log, or into a file of their own.

A room of its own because the file is an operator's: it may be moved away and be full.  Knows no process.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from strata.errors import ConfigError

_log: Final = logging.getLogger(__name__)
_format: Final = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format

Write = Callable[[int, str], object]
"""A line and its level.  Never raises and never waits: a line that can't be written is no reason to die."""


@contextmanager
def child_log(path: Path | None, name: str, *, checked: bool = True) -> Iterator[Write]:
    """For the length of the block.  `name` stands before each line.

    Raises ConfigError if `checked`: the file can't be written.  Later, and where it isn't checked, what the file does
    not take goes into the server's log, until it takes lines again.
    """
    if path is None:
        yield lambda level, line: _log.log(level, "%s: %s", name, line)
        return
    with closing(_OwnFile(path, name)) as own:
        if checked:
            own.check()
        yield own.write


class _OwnFile:
    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name
        self._file: int | None = None
        self._failing = False
        """The last line was not written, and this was said."""
        self._torn = False
        """A part of it was."""

    def check(self) -> None:
        try:
            self._reopen()
        except OSError as error:
            raise ConfigError("engine_log", f"{self._path} can't be written ({error.strerror or error})") from error

    def write(self, level: int, line: str) -> None:
        record = logging.LogRecord(self._name, level, "", 0, line, None, None)
        try:
            self._reopen()
            self._append(f"{_format(record)}\n".encode(errors="replace"))
            self._failing = False
        except OSError as error:
            self._say_once(error)
            _log.log(level, "%s: %s", self._name, line)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            # A network's disk may say only now that it is full.
            with suppress(OSError):
                os.close(file)

    def _reopen(self) -> None:
        """Opens it, and again where it was moved away, as log rotation does.  Raises OSError."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            self.close()
        else:
            if not (stat.S_ISREG(there.st_mode) or stat.S_ISCHR(there.st_mode)):
                self.close()
                raise OSError("it is no file")
            if self._file is not None and not os.path.samestat(there, os.fstat(self._file)):
                self.close()
        if self._file is None:
            # Not to wait for a terminal, nor for the reader of a pipe that has come into its place just now.
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
            self._torn = False

    def _append(self, data: bytes) -> None:
        """All of it, in a line of its own; raises OSError."""
        assert self._file is not None
        data = b"\n" + data if self._torn else data
        while data:
            data = data[os.write(self._file, data) :]
            self._torn = bool(data)

    def _say_once(self, error: OSError) -> None:
        if not self._failing:
            why = error.strerror or error
            _log.warning("engine_log: %s can't be written (%s): what follows comes here until it can", self._path, why)
        self._failing = True
