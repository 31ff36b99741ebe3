"""The loop that an engine lives in: what it was told, one slice or step, what came of it.

A room of its own because the loop is the same on a thread and in a child process.  Knows neither: messages come out of
an inbox that anybody may fill meanwhile, and facts go to whoever gave `say`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final, Protocol

from attrs import frozen

from strata.errors import frames_of
from strata.messages import EngineDied, FromEngine, Ready, ToEngine

_log: Final = logging.getLogger(__name__)


@frozen
class Ping:
    """Say a word at the next boundary, whatever there is to do."""


@frozen
class Pong:
    """The engine stands at a boundary."""


Told = ToEngine | Ping
Said = FromEngine | Pong
Inbox = SimpleQueue[Told | None]
"""None: the engine is to end, and nobody listens any more."""
Say = Callable[[Sequence[Said]], None]


class Driven(Protocol):
    """What the loop needs of an engine; `strata.engine.engine.Engine` says what each means."""

    @property
    def step_in_force(self) -> int | None: ...

    @property
    def stopped(self) -> bool: ...

    def ready(self, incarnation: int) -> Ready: ...

    def handle(self, message: ToEngine) -> None: ...

    def take_step(self) -> None: ...

    def advance(self) -> bool: ...

    def take_facts(self) -> list[FromEngine]: ...

    def close(self) -> None: ...


def drive(engine: Driven, inbox: Inbox, say: Say, *, incarnation: int) -> bool:
    """Says that the engine is ready, and runs it until it is stopped, dies (False) or nobody listens; then closes it.

    What escapes it is its death and is said as such, but for what `say` raises for its own reasons.
    """
    try:
        say([engine.ready(incarnation)])
        _run(engine, inbox, say)
    except BaseException as error:
        _log.critical("the engine died: %s", frames_of(error))
        say([EngineDied(f"{type(error).__name__}: {error}", engine.step_in_force)])
        return False
    finally:
        _close(engine)
    return True


def _run(engine: Driven, inbox: Inbox, say: Say) -> None:
    busy = True
    while not engine.stopped:
        try:
            if not _hear(engine, inbox, say, wait=not busy):
                return
            # What is in force is said before the slice or step that may be the last.
            engine.take_step()
            _pass_on(engine, say)
            busy = engine.advance()
        finally:
            _pass_on(engine, say)


def _pass_on(engine: Driven, say: Say) -> None:
    if facts := engine.take_facts():
        say(facts)


def _hear(engine: Driven, inbox: Inbox, say: Say, *, wait: bool) -> bool:
    """Hands over all that was told, after waiting for the first if asked to.  False: the loop is to end."""
    while wait or not inbox.empty():
        message = inbox.get()
        if message is None:
            return False
        if isinstance(message, Ping):
            say([Pong()])
        else:
            engine.handle(message)
        wait = False
    return True


def _close(engine: Driven) -> None:
    try:
        engine.close()
    except Exception as error:
        _log.error("the engine could not be closed: %s", frames_of(error))
