"""What an actor is: a mailbox, a life, and one `run` that reads the one and leads the other.

Knows nothing of who starts it or what comes after it; that is its supervisor's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

import trio
from attrs import frozen

from strata.actors.kernel.faults import without_cancelled
from strata.actors.kernel.lifecycle import ActorChange, ActorEvent, ActorState, Life
from strata.actors.kernel.mailbox import Mailbox
from strata.actors.kernel.ref import Ref

M = TypeVar("M")


@frozen
class ActorInfo:
    """An actor as it is now, for people and tests.  Times are Trio's monotonic seconds."""

    id: str
    kind: str
    state: ActorState
    since: float
    """When it came into this state."""
    started: float
    depth: int
    """Messages that wait in its mailbox."""
    parent: str | None
    restarts: int
    """How many of this id were there before it."""


class Actor(ABC, Generic[M]):
    """Subclass it, set `kind`, write `run`, and give it to a supervisor.  `M` is what it can be told.

    Made inside Trio, run once.  Its `ref` is good from the beginning: what it is told before it runs waits.
    """

    kind: ClassVar[str]
    """What the actors of one class are called: `request`; the first part of an id that was not chosen."""
    says_when_running: ClassVar[bool] = False
    """True: it is *starting* until its `run` calls `now_running`.  False: it is *running* as soon as it runs."""

    shielded: ClassVar[bool] = False
    """True: a cancellation from around its supervisor doesn't reach it; it ends by itself or by `stop`."""

    def __init__(self, id: str | None = None, *, limit: int | None = None) -> None:
        """`id`: unique in its registry while it lives; None: chosen by kind and number when it is started.
        `limit`: of its mailbox (messages)."""
        self.mailbox: Mailbox[M] = Mailbox(limit)
        self.ref: Ref[M] = Ref(id or "", self.mailbox)
        self.parent: str | None = None
        self.restarts = 0
        self.error: Exception | None = None
        """What it failed with, once it has; taken out of a group of one."""
        self._life = Life(trio.current_time())
        self._scope = trio.CancelScope(shield=self.shielded)
        # None: nobody waits for a change.
        self._changed: trio.lowlevel.ParkingLot | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id or 'without id'}, {self.state}>"

    @abstractmethod
    async def run(self) -> None:
        """Everything that it does.  Returning is a good end, an exception a failure, being cancelled an end."""

    @property
    def id(self) -> str:
        return self.ref.id

    @property
    def state(self) -> ActorState:
        return self._life.state

    @property
    def history(self) -> tuple[ActorChange, ...]:
        return self._life.history

    def info(self) -> ActorInfo:
        """What it is now; never waits."""
        return ActorInfo(
            id=self.id,
            kind=self.kind,
            state=self._life.state,
            since=self._life.since,
            started=self._life.history[0].at,
            depth=self.mailbox.depth,
            parent=self.parent,
            restarts=self.restarts,
        )

    def now_running(self) -> None:
        """Say from `run` that the start is done; nothing happens if it was told to stop meanwhile."""
        if self.state is ActorState.STARTING:
            self.follow(ActorEvent.STARTED)

    def follow(self, event: ActorEvent, reason: str = "") -> None:
        """Go where the table leads.  Raises IllegalTransition.  For the actor itself and its supervisor."""
        self._life.step(event, trio.current_time(), reason)
        if self._changed is not None:
            self._changed.unpark_all()

    def stop(self) -> None:
        """Tell it to end: what it waits for is cancelled.  Nothing happens if it ends already."""
        if self.state in (ActorState.STARTING, ActorState.RUNNING):
            self.follow(ActorEvent.TOLD_TO_STOP)
        self._scope.cancel()

    async def wait_started(self) -> None:
        """Return once it runs, is stopping, or has ended."""
        await self._wait_until_not(ActorState.STARTING)

    async def wait_ended(self) -> None:
        """Return once it has ended, however.  An actor that was never started never ends."""
        await self._wait_until_not(ActorState.STARTING, ActorState.RUNNING, ActorState.STOPPING)

    async def _wait_until_not(self, *states: ActorState) -> None:
        await trio.lowlevel.checkpoint()
        while self.state in states:
            self._changed = self._changed or trio.lowlevel.ParkingLot()
            await self._changed.park()

    async def live(self) -> None:
        """Run it to its end, inside its own cancel scope, and settle what it leaves open.  For its supervisor.

        A failure is recorded and raised; nobody who asked it waits after this.
        """
        try:
            with self._scope:
                if not self.says_when_running:
                    self.now_running()
                await self.run()
        except BaseException as error:
            self._fail_unless_cancelled(error)
            raise
        else:
            self.follow(ActorEvent.ENDED)
        finally:
            self.ref.close()

    def _fail_unless_cancelled(self, error: BaseException) -> None:
        fault = without_cancelled(error)
        if fault is None:
            self.follow(ActorEvent.ENDED)
            return
        self.error = fault if isinstance(fault, Exception) else None
        self.follow(ActorEvent.FAILED, f"{type(fault).__name__}: {fault}")
