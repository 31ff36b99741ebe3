"""The loop that an engine lives in: what it was told, one slice or step, what came of it.

A room of its own because the loop is the same on a thread and in a child process.  Knows neither: messages come out of
an inbox that anybody may fill meanwhile, and facts go to whoever gave `say`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from math import inf
from queue import SimpleQueue
from typing import Final, Protocol

from attrs import frozen

from strata.errors import frames_of
from strata.messages import EngineDied, FromEngine, Progress, Ready, ToEngine, Took

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


HELD_S: Final = 0.02
"""How long after the last word a heartbeat may still wait (seconds): two slices of a processor's.

That is looked at where a slice or step ends: a long one makes the heartbeat before it as late as it takes.
"""


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


def drive(
    engine: Driven, inbox: Inbox, say: Say, *, incarnation: int, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Says that the engine is ready, and runs it until it is stopped, dies (False) or nobody listens; then closes it.

    What escapes it is its death and is said as such, but for what `say` raises for its own reasons.
    """
    heartbeats = Heartbeats(say, clock)
    try:
        say([engine.ready(incarnation)])
        _run(engine, inbox, heartbeats)
    except BaseException as error:
        _log.critical("the engine died: %s", frames_of(error))
        heartbeats.add([EngineDied(f"{type(error).__name__}: {error}", engine.step_in_force)])
        return False
    finally:
        _close(engine)
    return True


class Heartbeats:
    """What an engine says, in order, and of a read's slices not each by itself.

    To be told of a slice costs its hearer a share of the processors that compute the next one.  So after a step's
    first slice, which frees its reader to be parked, a heartbeat waits for what comes after it, until a slice or step
    ends `HELD_S` after the last word.
    """

    def __init__(self, say: Say, clock: Callable[[], float]) -> None:
        self._say = say
        self._clock = clock
        self._held: list[Said] = []
        self._said_at = -inf
        self._first = True
        """Whether no slice of the step in force was said yet."""

    def add(self, facts: Sequence[Said]) -> None:
        """Says these and those before them, unless all are heartbeats that can wait."""
        self._held += facts
        waits = all(isinstance(fact, Progress) for fact in facts)
        if waits and not self._first and self._clock() - self._said_at < HELD_S:
            return
        for fact in facts:
            self._first = isinstance(fact, Took) or (self._first and not isinstance(fact, Progress))
        self.flush()

    def flush(self) -> None:
        """Says all."""
        if self._held:
            # What can't be said isn't said again.
            held, self._held = self._held, []
            self._said_at = self._clock()
            self._say(held)


def _run(engine: Driven, inbox: Inbox, heartbeats: Heartbeats) -> None:
    busy = True
    while not engine.stopped:
        try:
            if not busy:
                heartbeats.flush()
            if not _hear(engine, inbox, heartbeats, wait=not busy):
                return
            # What is in force is said before the slice or step that may be the last.
            engine.take_step()
            heartbeats.add(engine.take_facts())
            busy = engine.advance()
        finally:
            heartbeats.add(engine.take_facts())


def _hear(engine: Driven, inbox: Inbox, heartbeats: Heartbeats, *, wait: bool) -> bool:
    """Hands over all that was told, after waiting for the first if asked to.  False: the loop is to end."""
    while wait or not inbox.empty():
        message = inbox.get()
        if message is None:
            return False
        if isinstance(message, Ping):
            heartbeats.add([Pong()])
        else:
            engine.handle(message)
        wait = False
    return True


def _close(engine: Driven) -> None:
    try:
        engine.close()
    except Exception as error:
        _log.error("the engine could not be closed: %s", frames_of(error))
