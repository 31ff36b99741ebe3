"""Where the engine lives: on one thread of its own, reached by messages from the Trio thread.

A room of its own because it is all that actors see of the engine: `tell`, and facts that come back.  Whether the engine
is a thread, a child process or a script makes no difference to them.  Knows nothing of what the messages mean but that
`Stopped` is the last one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol, runtime_checkable

import trio

from strata.engine.bell import Bell, make_bell
from strata.engine.drive import Driven, Inbox, Ping, Pong, Said, drive
from strata.engine.watchdog import Watchdog
from strata.messages import EngineDied, FromEngine, Ready, ToEngine, Took

_log: Final = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0
"""For a slice or step that is under way, or a model that is being loaded, when nobody wants it any more."""

Deliver = Callable[[FromEngine], None]


class EngineHost(Protocol):
    """Runs an engine somewhere.  One life: `run` is called once."""

    def tell(self, message: ToEngine) -> None:
        """From the Trio thread; never blocks.  What is told after the engine's end is dropped."""
        ...

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        """Builds the engine, starts with its `Ready`, and hands every later fact to `deliver`, in the Trio thread.

        What hinders the engine from being built is raised before the start (StartError and any other).  Returns after
        `Stopped` or `EngineDied` was delivered; one of the two is the last fact.  Cancelled, it ends the engine.
        """
        ...


@runtime_checkable
class Killable(Protocol):
    """A host that need not wait for its engine, as that of a process.  A thread's has to."""

    @property
    def ends_at_once(self) -> bool:
        """Whether a cancelled `run` ends the engine at once, also while it is being built."""


class ThreadHost:
    """An engine on a thread of this process.  `make_engine` is called on that thread, and the engine stays there.

    A thread can't be killed: a cancelled `run` waits for the end of the slice or step that is under way, or for
    `make_engine`, without blocking the loop.  After `patience_s` it gives the thread up: that stays until its slice
    ends or the process does, and clears up after itself.  So it is with an engine that hangs, which is reported as
    dead; None for `watchdog_floor_s`: nobody looks whether it does.
    """

    def __init__(
        self,
        make_engine: Callable[[], Driven],
        *,
        incarnation: int = 1,
        patience_s: float = PATIENCE_S,
        watchdog_floor_s: float | None = None,
    ) -> None:
        self._make_engine = make_engine
        self._incarnation = incarnation
        self._patience_s = patience_s
        self._watchdog = None if watchdog_floor_s is None else Watchdog(watchdog_floor_s)
        self._last_step: int | None = None
        self._inbox: Inbox = SimpleQueue()
        """None ends the thread."""
        self._facts: deque[Said] = deque()
        self._failure: BaseException | None = None
        """Why there is no engine."""
        self._over = False
        """Whether the thread has said all that it has to say."""
        self._given_up = False
        """Whether the thread has to clear up, because nobody waits for it any more."""
        self._parting = threading.Lock()
        """Held for the moment in which one of the last two is decided, so that one side alone closes the bell."""

    def __repr__(self) -> str:
        state = "over" if self._over else f"{self._inbox.qsize()} messages, {len(self._facts)} facts under way"
        return f"<ThreadHost {self._incarnation}: {state}>"

    # -- the Trio thread --------------------------------------------------------------------------------------------

    @property
    def left_behind(self) -> bool:
        """Whether `run` has ended and the thread has not."""
        return self._given_up

    def tell(self, message: ToEngine) -> None:
        if not self._over:
            self._inbox.put(message)

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        bell = make_bell()
        # A daemon, so that an interpreter that is torn down from outside does not wait for a slice that hangs.
        thread = threading.Thread(
            target=self._work, args=(bell,), name=f"strata-engine-{self._incarnation}", daemon=True
        )
        thread.start()
        try:
            await self._wait_built(bell, task_status)
            await self._deliver_all(bell, deliver)
        finally:
            self._inbox.put(None)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._patience_s):
                await self._wait_over(bell)
            self._part(thread, bell)

    def _part(self, thread: threading.Thread, bell: Bell) -> None:
        with self._parting:
            self._given_up = not self._over
        if self._given_up:
            _log.critical("%s did not end within %g s and is left behind", thread.name, self._patience_s)
            return
        # It rang as its last act, so this waits for no slice.
        thread.join()
        bell.close()

    async def _wait_built(self, bell: Bell, task_status: trio.TaskStatus[Ready]) -> None:
        await trio.lowlevel.checkpoint()
        while not self._facts and not self._over:
            await bell.wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        ready = self._facts.popleft()
        assert isinstance(ready, Ready), "the engine's first fact is that it is ready"
        task_status.started(ready)

    async def _deliver_all(self, bell: Bell, deliver: Deliver) -> None:
        await trio.lowlevel.checkpoint()
        while True:
            # Looked at before the facts: what was said before the thread's end is there by then.
            over = self._over
            while self._facts:
                self._hear(self._facts.popleft(), deliver)
            if over:
                return
            if reason := await self._wait_news(bell):
                deliver(EngineDied(reason, self._last_step))
                return

    def _hear(self, fact: Said, deliver: Deliver) -> None:
        if self._watchdog is not None:
            self._watchdog.heard(getattr(fact, "seconds", 0.0))
        if isinstance(fact, Pong):
            return
        if isinstance(fact, Took):
            self._last_step = fact.n
        deliver(fact)

    async def _wait_news(self, bell: Bell) -> str | None:
        """Until there are facts, or it is time to ask for one.  Returns why the engine counts as dead, if it does."""
        if self._watchdog is None:
            await bell.wait()
            return None
        with trio.move_on_after(self._watchdog.look_s):
            await bell.wait()
            return None
        self._inbox.put(Ping())
        return self._watchdog.verdict if self._watchdog.look() else None

    async def _wait_over(self, bell: Bell) -> None:
        await trio.lowlevel.checkpoint()
        while not self._over:
            await bell.wait()

    # -- the engine's thread ----------------------------------------------------------------------------------------

    def _work(self, bell: Bell) -> None:
        try:
            self._live(bell)
        finally:
            with self._parting:
                self._over = True
            if self._given_up:
                bell.close()
            else:
                bell.ring()

    def _live(self, bell: Bell) -> None:
        try:
            engine = self._make_engine()
        except BaseException as failure:
            self._failure = failure
            return
        drive(engine, self._inbox, partial(self._say, bell), incarnation=self._incarnation)

    def _say(self, bell: Bell, facts: Sequence[Said]) -> None:
        self._facts.extend(facts)
        bell.ring()
