"""Brings up the next engine when one has ended.  Knows how often that makes sense; no request and no model.

One for each runtime.  It is no actor: it acts when an engine's actor has ended, in that very call, so there is no time
at which an engine is gone and nobody knows what comes next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

import trio

from strata.actors.dispatcher import Dispatcher, NoEngine, Replacing
from strata.actors.engine import EngineActor
from strata.actors.kernel import Actor, ActorInfo, ActorState, Supervisor
from strata.config import HostSettings
from strata.engine.host import Deliver, EngineHost
from strata.errors import EngineUnavailable, frames_of
from strata.messages import Ready, ToEngine

log = logging.getLogger("strata")

YOUNG_S: Final = 5.0
"""An engine that dies sooner after its start may do so again at once; one that lived longer has its successor now."""
LONGEST_BACKOFF_S: Final = 8.0

Hosts = Callable[[int], EngineHost]
"""A host for the engine of this incarnation, counted from 1.  Called in the Trio thread; blocks on nothing."""


@runtime_checkable
class Lingering(Protocol):
    """A host that may be unable to end its engine, as a thread is."""

    @property
    def left_behind(self) -> bool:
        """Whether `run` has ended and the engine has not."""


class EngineKeeper:
    """`on_lost` is called once, with the reason, when there will be no engine any more.

    `hosts` makes each engine's host; `renewable`: False says that it can make one only.
    """

    def __init__(
        self,
        hosts: Hosts,
        dispatcher: Dispatcher,
        settings: HostSettings,
        *,
        on_lost: Callable[[str], None],
        renewable: bool = True,
    ) -> None:
        self.restarts = 0
        """Engines after the first."""
        self._hosts: Hosts | None = hosts
        self._dispatcher = dispatcher
        self._settings = settings
        self._on_lost = on_lost
        self._renewable = renewable
        self._supervisor: Supervisor | None = None
        """None before the first engine is up, and when no other is wanted."""
        self._host: EngineHost | None = None
        self._engine: EngineActor | None = None
        self._deaths: deque[float] = deque()
        """When engines died, as far back as `restart_window_s`."""
        self._died_young = 0
        """How many did in a row."""
        self._replacing = False
        """Whether the engine was told to stop so that another can start."""

    def __repr__(self) -> str:
        return f"<EngineKeeper {self._engine}, {self.restarts} restarts>"

    # -- for the runtime --------------------------------------------------------------------------------------------

    async def start(self, supervisor: Supervisor) -> Ready:
        """Bring up the first engine and wait until it is ready.  Raises what hinders it (StartError and any other)."""
        engine = self._make(1)
        await supervisor.start(engine, on_failure=_told_already)
        self._supervisor = supervisor
        assert engine.ready is not None
        return engine.ready

    def ended(self, actor: Actor[Any]) -> None:
        """An actor has ended; if it is the engine's, this is where its successor starts."""
        if actor is not self._engine or self._supervisor is None:
            return
        if self._replacing and actor.error is None:
            self._replacing = False
            self._succeed(backoff_s=0.0)
        elif actor.error is not None:
            self._died(str(actor.error), trio.current_time())

    def replace(self) -> bool:
        """End this engine and start another; what it holds ends or is replayed, as `on_engine_death` says.

        One that waits for its time or is being built ends too, and another is begun at once.  False: nothing was done,
        for another is coming anyway: this one ends already, or it is being built on a thread, which can't be cut short.
        Raises EngineUnavailable where there can be no other.
        """
        if self._supervisor is None or self._engine is None or not self._renewable:
            raise EngineUnavailable("this engine can't be replaced by another")
        if self._replacing or not self._engine.ends_soon:
            return False
        self._replacing = True
        self._dispatcher.ref.tell(Replacing())
        self._engine.stop()
        return True

    def close(self) -> None:
        """From now on an engine that ends has no successor, and nothing here holds its files."""
        self._supervisor = self._hosts = self._host = self._engine = None

    def stop(self) -> None:
        """End the engine for good."""
        engine = self._engine
        self.close()
        if engine is not None:
            engine.stop()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _make(self, incarnation: int, *, backoff_s: float = 0.0) -> EngineActor:
        self._host = self._make_host(incarnation)
        self._engine = EngineActor(self._host, self._dispatcher.ref, incarnation=incarnation, start_after_s=backoff_s)
        self._dispatcher.expect(self._engine.ref, incarnation)
        return self._engine

    def _make_host(self, incarnation: int) -> EngineHost:
        assert self._hosts is not None
        try:
            return self._hosts(incarnation)
        except Exception as error:
            log.error("no host for engine %d: %s", incarnation, frames_of(error))
            return _NoHost(error)

    def _succeed(self, *, backoff_s: float) -> None:
        assert self._supervisor is not None
        self.restarts += 1
        engine = self._make(self.restarts + 1, backoff_s=backoff_s)
        self._supervisor.spawn(engine, on_failure=_told_already, restarts=self.restarts)

    def _died(self, reason: str, now: float) -> None:
        why_no_other = self._count(reason, now)
        if why_no_other is not None:
            self._lose(why_no_other)
            return
        backoff_s = self._backoff_s()
        log.error("the engine died: %s; another starts in %g s", reason, backoff_s)
        self._replacing = False
        self._succeed(backoff_s=backoff_s)

    def _count(self, reason: str, now: float) -> str | None:
        """Note a death.  Why there should be no other engine, or None."""
        assert self._engine is not None
        window = self._settings.restart_window_s
        self._deaths.append(now)
        while now - self._deaths[0] >= window:
            self._deaths.popleft()
        self._died_young = self._died_young + 1 if _lived_s(self._engine, now) < YOUNG_S else 0
        if _is_left_behind(self._host):
            return f"the engine hangs on its thread, which can't be ended: {reason}"
        if not self._renewable or not self._settings.restart_limit:
            return f"the engine died: {reason}"
        if len(self._deaths) > self._settings.restart_limit:
            return f"the engine died {len(self._deaths)} times in {window:g} s, the last time: {reason}"
        return None

    def _backoff_s(self) -> float:
        if self._died_young < 2:
            return 0.0
        # Bounded before it is doubled: many may die young where the limit is high.
        doublings = min(self._died_young - 2, 16)
        return min(self._settings.restart_backoff_s * 2.0**doublings, LONGEST_BACKOFF_S)

    def _lose(self, reason: str) -> None:
        log.critical("%s; there is no other", reason)
        self.close()
        self._on_lost(reason)
        self._dispatcher.ref.tell(NoEngine(EngineUnavailable(reason)))


def _lived_s(engine: EngineActor, now: float) -> float:
    """Since it was ready; 0 if it never was."""
    ready_at: float = next((change.at for change in engine.history if change.state is ActorState.RUNNING), now)
    return now - ready_at


def _is_left_behind(host: object) -> bool:
    return isinstance(host, Lingering) and host.left_behind


def _told_already(_info: ActorInfo, _error: Exception) -> None:
    """The engine has said so itself to the dispatcher, and the keeper hears of every end from the registry."""


class _NoHost:
    """Stands for a host that could not be made, so that this too is an engine's death like any other."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def tell(self, message: ToEngine) -> None:
        """There is nobody."""

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:  # noqa: ARG002  (EngineHost's)
        await trio.lowlevel.checkpoint()
        raise self._error
