"""An engine's process as its server has it: started, heard, ended, and nothing left of it.  Knows no message.

A room of its own because a process has five ends (itself, the line, its lifeline, its output and their descriptors),
which must all be closed however it went.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio
from attrs import field, frozen

from strata.engine.child_log import Write, child_log
from strata.engine.last_words import LastWords, level_of
from strata.engine.line import Line
from strata.errors import StartFailed

_log: Final = logging.getLogger(__name__)

_REST_S: Final = 1.0
"""For what is left of its output and of its messages, when it is gone and a process of its own holds the other end."""


@frozen(eq=False)
class ChildProcess:
    process: trio.Process
    line: Line
    write: Write
    """Where it is logged what it says."""
    words: LastWords = field(factory=LastWords)
    _all_heard: trio.Event = field(factory=trio.Event)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()

    async def keep_listening(self) -> None:
        """Passes on what it writes on its output, to the last word."""
        output = self.process.stdout
        assert output is not None
        try:
            while data := await output.receive_some():
                for line in self.words.feed(bytes(data)):
                    self.write(*level_of(line))
        finally:
            self._all_heard.set()

    async def wait_ended(self, patience_s: float) -> int | None:
        """Its exit code, or minus the signal that killed it; None: even a kill did not end it.  Killed at the latest
        after `patience_s`."""
        with trio.move_on_after(patience_s):
            await self.process.wait()
        self.kill()
        with trio.move_on_after(patience_s):
            await self.process.wait()
        with trio.move_on_after(_REST_S):
            await self._all_heard.wait()
        return self.process.returncode

    async def hear_no_more(self, hearing: trio.CancelScope) -> None:
        """Ends the hearing of a process that is gone, should another hold its end of the line."""
        await self.process.wait()
        await trio.sleep(_REST_S)
        hearing.cancel()


@asynccontextmanager
async def open_child(
    module: str, *, name: str, log: Path | None, check_log: bool, patience_s: float, max_backlog: int
) -> AsyncIterator[ChildProcess]:
    """Runs `python -m module FD` to the end of the block, at which it is killed.  Raises StartFailed: it can't be run.

    `name` and `log`: how it is called in the logs, and a file of its own if it has one (ConfigError: not writable, if
    `check_log`).

    It finds the modules that this process finds.  It has a session of its own: no terminal's signal reaches it.
    """
    near, far = socket.socketpair()
    try:
        with child_log(log, name, checked=check_log) as write:
            with far:
                process = await _start(module, far)
            try:
                yield ChildProcess(process, Line(near, max_backlog), write)
            finally:
                with trio.CancelScope(shield=True):
                    await _end(process, name, patience_s)
    finally:
        near.close()
        far.close()


async def _start(module: str, line: socket.socket) -> trio.Process:
    try:
        return await trio.lowlevel.open_process(
            [sys.executable, "-P", "-m", module, str(line.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[line.fileno()],
            start_new_session=True,
            env=_environment(),
        )
    except OSError as error:
        raise StartFailed(f"the engine's process can't be started ({error})") from error


def _environment() -> dict[str, str]:
    """An empty name on the path is the folder that this process is in."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


async def _end(process: trio.Process, name: str, patience_s: float) -> None:
    try:
        if process.returncode is None:
            process.kill()
        with trio.move_on_after(patience_s):
            await process.wait()
            return
        _log.critical("%s (process %d) was killed and did not end within %g s", name, process.pid, patience_s)
    finally:
        # The lifeline last: its end kills too.
        for pipe in (process.stdout, process.stdin):
            assert pipe is not None
            await pipe.aclose()


def how(code: int | None) -> str:
    """How a process ended, in words, after `its process`."""
    if code is None:
        return "can't be ended"
    if code >= 0:
        return f"ended with exit code {code}"
    killed = f"was killed by {signal_name(code)}"
    return f"{killed}, as the system does when memory runs out" if -code == signal.SIGKILL else killed


def signal_name(code: int) -> str:
    """Of an exit code below zero: `SIGKILL`."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
