"""Where the engine lives: on one thread of its own, reached by messages from the Trio thread.

A room of its own because it is all that actors see of the engine: `tell`, and facts that come back.  Whether the engine
is a thread, a child process or a script makes no difference to them.  Knows nothing of what the messages mean but that
`Stopped` is the last one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

import trio

from strata.engine.bell import Bell, make_bell
from strata.engine.engine import Engine
from strata.errors import frames_of
from strata.messages import EngineDied, FromEngine, Ready, ToEngine

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


class ThreadHost:
    """An engine on a thread of this process.  `make_engine` is called on that thread, and the engine stays there.

    A thread can't be killed: a cancelled `run` waits for the end of the slice or step that is under way, or for
    `make_engine`, without blocking the loop.  After `patience_s` it gives the thread up: that stays until its slice
    ends or the process does, and clears up after itself.
    """

    def __init__(
        self, make_engine: Callable[[], Engine], *, incarnation: int = 1, patience_s: float = PATIENCE_S
    ) -> None:
        self._make_engine = make_engine
        self._incarnation = incarnation
        self._patience_s = patience_s
        self._inbox: SimpleQueue[ToEngine | None] = SimpleQueue()
        """None ends the thread."""
        self._facts: deque[FromEngine] = deque()
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
                deliver(self._facts.popleft())
            if over:
                return
            await bell.wait()

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
        try:
            self._say([engine.ready(self._incarnation)], bell)
            self._drive(engine, bell)
        except BaseException as error:
            _log.critical("the engine died: %s", frames_of(error))
            self._say([EngineDied(f"{type(error).__name__}: {error}", engine.step_in_force)], bell)
        finally:
            _close(engine)

    def _drive(self, engine: Engine, bell: Bell) -> None:
        """Until it is stopped or nobody listens: the inbox, then one slice or step, then what came of it."""
        busy = True
        while not engine.stopped:
            try:
                if not self._drain(engine, wait=not busy):
                    return
                busy = engine.advance()
            finally:
                self._say(engine.take_facts(), bell)

    def _drain(self, engine: Engine, *, wait: bool) -> bool:
        """Hands over all that was told, after waiting for the first if asked to.  False: the thread is to end."""
        while wait or not self._inbox.empty():
            message = self._inbox.get()
            if message is None:
                return False
            engine.handle(message)
            wait = False
        return True

    def _say(self, facts: list[FromEngine], bell: Bell) -> None:
        if facts:
            self._facts.extend(facts)
            bell.ring()


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except Exception as error:
        _log.error("the engine could not be closed: %s", frames_of(error))
