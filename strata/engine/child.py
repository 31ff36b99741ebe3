"""The engine's process: `python -m strata.engine.child FD`, FD being its end of a socket pair.

A room of its own because nothing here runs in the server.  Standard input is the lifeline, standard output and error
are one pipe that the parent keeps the end of.  The engine lives on the main thread; one other thread reads what it is
told, so that a newer step is there at the next boundary.  Imports little: an engine's own modules come when it is
built, after the process has been given its processors.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final

from strata.engine.drive import Driven, Inbox, Said, drive
from strata.engine.last_words import tells_of_memory, too_little_memory
from strata.engine.lifeline import die_with_the_other_end_of
from strata.engine.wire import Begin, CouldNotStart, Frames, FromChild, WireError, encode
from strata.errors import ConfigError, StartError, frames_of

log: Final = logging.getLogger("strata.engine.child")

STOPPED, DIED, NOT_STARTED, ORPHANED = 0, 1, 2, 4
"""Exit codes."""
_READ_BYTES: Final = 1 << 16


def main() -> None:
    """Never returns: what a native library does at an orderly exit could hang or crash."""
    # A terminal's Ctrl-C and end and a service manager's SIGTERM go to all of a server's processes; it drains first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    code = DIED
    try:
        code = _live(socket.socket(fileno=int(sys.argv[1])))
    except BaseException as error:
        # Not its message, which may quote a prompt; there is nobody left to tell otherwise.
        log.critical("the engine's process failed: %s", frames_of(error))
    finally:
        logging.shutdown()
        os._exit(code)


def _live(line: socket.socket) -> int:
    line.set_inheritable(False)
    die_with_the_other_end_of(sys.stdin.fileno())
    frames = Frames()
    begin = _wait_begin(line, frames)
    inbox: Inbox = SimpleQueue()
    threading.Thread(target=_read_all, args=(line, frames, inbox), name="strata-reader", daemon=True).start()
    engine = _build(line, begin)
    if engine is None:
        return NOT_STARTED
    return STOPPED if drive(engine, inbox, lambda facts: _say(line, facts), incarnation=begin.incarnation) else DIED


def _wait_begin(line: socket.socket, frames: Frames) -> Begin:
    while (begin := frames.take()) is None:
        frames.feed(_receive(line))
    if not isinstance(begin, Begin):
        raise WireError(f"the first message was {type(begin).__name__}")
    return begin


# -- being built ------------------------------------------------------------------------------------------------------


def _build(line: socket.socket, begin: Begin) -> Driven | None:
    try:
        _take_no_more_than(begin)
        return begin.spec.build()
    except BaseException as raised:
        error = _too_little(begin.memory_mib, raised)
        if not isinstance(error, StartError):
            # Of what says itself what to do, where it was found is of no use to anybody.
            log.error("the engine could not be built: %s", frames_of(error))
        setting = error.setting if isinstance(error, ConfigError) else None
        message = str(error) if setting is None else str(error).removeprefix(f"{setting}: ")
        _say(line, [CouldNotStart(_kind(error), message, setting)])
        return None


def _too_little(memory_mib: int | None, error: BaseException) -> BaseException:
    """What it was that hindered: memory that is short under a limit of ours is that setting's doing."""
    cause = error.__cause__ or error
    if memory_mib is None or not (isinstance(cause, MemoryError) or tells_of_memory(str(cause))):
        return error
    return too_little_memory(memory_mib, f"{type(cause).__name__}: {cause}".removesuffix(": "))


def _kind(error: BaseException) -> str:
    """The name by which the parent knows it: the type's own, or that of the nearest of ours that it derives from."""
    return next(
        (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "strata.errors"), type(error).__name__
    )


def _take_no_more_than(begin: Begin) -> None:
    """Raises ConfigError where the system refuses."""
    if begin.cpus:
        _try("engine_cpus", lambda: os.sched_setaffinity(0, begin.cpus))
    if begin.nice:
        _try("engine_nice", lambda: os.nice(begin.nice))
    if (mib := begin.memory_mib) is not None:
        # Not the address space: the model file is mapped into that, and a GPU's driver reserves far more than it takes.
        _try("engine_memory_mib", lambda: resource.setrlimit(resource.RLIMIT_DATA, (mib << 20, mib << 20)))


def _try(setting: str, do: Callable[[], object]) -> None:
    try:
        do()
    except (OSError, ValueError) as error:
        raise ConfigError(setting, f"the system refuses it ({error})") from error


# -- hearing and saying -----------------------------------------------------------------------------------------------


def _read_all(line: socket.socket, frames: Frames, inbox: Inbox) -> None:
    """On a thread of its own, and for ever: with the last byte, or with the first that is wrong, the process ends."""
    try:
        while True:
            while (message := frames.take()) is not None:
                inbox.put(message)
            frames.feed(_receive(line))
    except BaseException as error:
        log.critical("the engine's process can't go on: %s", frames_of(error))
        os._exit(DIED)


def _receive(line: socket.socket) -> bytes:
    """Some bytes.  At the end of them the parent is gone, and so is this process, whatever is under way in it."""
    try:
        data = line.recv(_READ_BYTES)
    except ConnectionError:
        data = b""
    if not data:
        os._exit(ORPHANED)
    return data


def _say(line: socket.socket, facts: Sequence[Said | CouldNotStart]) -> None:
    said: list[FromChild] = list(facts)
    data = b"".join(map(encode, said))
    try:
        line.sendall(data)
    except ConnectionError:
        os._exit(ORPHANED)


if __name__ == "__main__":
    main()
