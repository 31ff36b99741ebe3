"""The engine in a child process: reached by messages over a private socket pair, and buried when it dies.

A room of its own because a process can do what a thread can't: be killed, by the system or by us, and take nothing
with it.  Knows of the messages only who is up, which step is in force and who is last.
"""

from __future__ import annotations

import logging
import signal
from typing import Any, Final

import trio

from strata import errors
from strata.config import HostSettings
from strata.engine.child_process import ChildProcess, how, open_child, signal_name
from strata.engine.drive import Ping, Pong
from strata.engine.host import PATIENCE_S, Deliver
from strata.engine.last_words import tells_of_memory, too_little_memory
from strata.engine.line import MAX_BACKLOG
from strata.engine.spec import EngineSpec
from strata.engine.watchdog import Watchdog
from strata.engine.wire import Begin, CouldNotStart, WireError
from strata.errors import ConfigError, StartError, StartFailed
from strata.messages import EngineDied, Ready, Stopped, ToEngine, Took

_log: Final = logging.getLogger(__name__)


class ProcessHost:
    """An engine in a process of its own, which is killed when `run` is cancelled, and when the engine hangs.

    What hinders the engine from being built arrives as the StartError that it is; any other error, and a process that
    ends before its engine is up, as a StartFailed that tells it: who was killed while it loaded was asked for nothing
    wrong.
    """

    ends_at_once: Final = True

    def __init__(
        self,
        spec: EngineSpec,
        *,
        incarnation: int = 1,
        settings: HostSettings | None = None,
        patience_s: float = PATIENCE_S,
        max_backlog: int = MAX_BACKLOG,
    ) -> None:
        """`patience_s`: how long a process may take to end when it has no more to do, or was killed.  `max_backlog`:
        bytes of messages that may wait to be read by it."""
        self._settings = settings or HostSettings()
        self._begin = Begin(
            spec=spec,
            incarnation=incarnation,
            cpus=self._settings.cpus,
            nice=self._settings.engine_nice,
            memory_mib=self._settings.engine_memory_mib,
        )
        self._patience_s = patience_s
        self._max_backlog = max_backlog
        self._watchdog = Watchdog(self._settings.watchdog_floor_s)
        self._building_s = 0.0
        self._early: list[ToEngine] | None = []
        """What was told before there was anybody to tell; None from then on."""
        self._child: ChildProcess | None = None
        self._ready = False
        self._stopped = False
        self._last_step: int | None = None
        self._failure: StartError | None = None
        """Why there is no engine."""
        self._own_death: EngineDied | None = None
        """As the engine itself said it, before its process ended."""
        self._left_behind = False
        self._verdict: str | None = None
        """Why it was killed by us."""

    def __repr__(self) -> str:
        return f"<ProcessHost {self._begin.incarnation}: {self._child or 'no process'}>"

    @property
    def pid(self) -> int | None:
        """The engine's process, while there is one."""
        return None if self._child is None else self._child.pid

    @property
    def left_behind(self) -> bool:
        """Whether `run` has ended and the process has not: not even a kill ended it."""
        return self._left_behind

    def tell(self, message: ToEngine) -> None:
        if self._early is not None:
            self._early.append(message)
        elif self._child is not None:
            self._tell(self._child, message)

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        name = f"engine {self._begin.incarnation}"
        try:
            async with open_child(
                "strata.engine.child",
                name=name,
                log=self._settings.engine_log,
                # A disk that has filled up since then is no reason to have no engine.
                check_log=self._begin.incarnation == 1,
                patience_s=self._patience_s,
                max_backlog=self._max_backlog,
            ) as child:
                self._first_words(child)
                code = await self._live(child, deliver, task_status)
        finally:
            self._child = self._early = None
        if self._failure is not None:
            raise self._failure
        if not self._stopped:
            self._bury(child, code, deliver)

    # -- a life -----------------------------------------------------------------------------------------------------

    def _first_words(self, child: ChildProcess) -> None:
        self._child = child
        child.line.tell(self._begin)
        early, self._early = self._early or [], None
        for message in early:
            self._tell(child, message)

    async def _live(self, child: ChildProcess, deliver: Deliver, task_status: trio.TaskStatus[Ready]) -> int | None:
        """To its end; how it ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.line.keep_sending)
            nursery.start_soon(child.keep_listening)
            nursery.start_soon(self._watch, child)
            with trio.CancelScope() as hearing:
                nursery.start_soon(child.hear_no_more, hearing)
                await self._hear_all(child, deliver, task_status)
            code = await child.wait_ended(self._patience_s)
            self._left_behind = code is None
            nursery.cancel_scope.cancel()
        return code

    async def _hear_all(self, child: ChildProcess, deliver: Deliver, task_status: trio.TaskStatus[Ready]) -> None:
        """Until it has said its last word."""
        await trio.lowlevel.checkpoint()
        try:
            while not self._stopped and (messages := await child.line.receive()):
                for message in messages:
                    self._hear(message, deliver, task_status)
        except WireError as error:
            self._kill(child, f"it said {error}")

    def _hear(self, message: Any, deliver: Deliver, task_status: trio.TaskStatus[Ready]) -> None:
        self._watchdog.heard(getattr(message, "seconds", 0.0))
        match message:
            case Pong():
                pass
            case Ready() if not self._ready:
                self._ready = True
                task_status.started(message)
            case CouldNotStart():
                self._failure = _as_error(message)
            case EngineDied():
                self._own_death = message
            case _:
                if isinstance(message, Took):
                    self._last_step = message.n
                self._stopped = self._stopped or isinstance(message, Stopped)
                deliver(message)

    async def _watch(self, child: ChildProcess) -> None:
        """For as long as it is let; a process that says nothing when it is asked is killed."""
        while True:
            await trio.sleep(self._watchdog.look_s)
            if not self._ready:
                self._wait_for_it(child)
                continue
            if self._watchdog.look():
                self._kill(child, self._watchdog.verdict)
            self._tell(child, Ping())

    def _wait_for_it(self, child: ChildProcess) -> None:
        """A large model on a slow disk may take minutes; one that is never built must not be waited for for ever."""
        self._building_s += self._watchdog.look_s
        if self._building_s > self._settings.engine_start_s:
            self._kill(child, f"it was not built within {self._settings.engine_start_s:g} s")

    def _tell(self, child: ChildProcess, message: ToEngine | Ping) -> None:
        child.line.tell(message)
        if child.line.overfull:
            self._kill(child, "it does not read what it is told")

    def _kill(self, child: ChildProcess, verdict: str) -> None:
        self._verdict = self._verdict or verdict
        child.kill()

    # -- its end ----------------------------------------------------------------------------------------------------

    def _bury(self, child: ChildProcess, code: int | None, deliver: Deliver) -> None:
        """Said once, whatever the cause.  Raises StartError if it never was up."""
        own = self._own_death
        reason = self._verdict or (f"its process {how(code)}" if own is None else own.reason)
        if not self._ready:
            raise self._never_up(child, code, reason)
        _log.critical("engine %d died: %s", self._begin.incarnation, reason)
        deliver(
            EngineDied(
                reason,
                self._last_step if own is None else own.last_step,
                exit_code=None if code is None or code < 0 else code,
                signal=None if code is None or code >= 0 else signal_name(code),
                last_words=child.words.text,
            )
        )

    def _never_up(self, child: ChildProcess, code: int | None, reason: str) -> StartError:
        """A native library ends the process itself where its own limit gives it no memory; the system kills it."""
        mib, killed = self._begin.memory_mib, code == -signal.SIGKILL
        if mib is not None and not killed and tells_of_memory(child.words.text):
            return too_little_memory(mib, reason)
        return StartFailed(f"the engine could not be built: {reason}; the log has what it said")


def _as_error(said: CouldNotStart) -> StartError:
    """The error that it was, if it is one of ours; its text is the same."""
    if said.setting is not None:
        return ConfigError(said.setting, said.message)
    kind = getattr(errors, said.kind, None)
    if isinstance(kind, type) and issubclass(kind, StartError):
        return kind(said.message)
    return StartError(f"the engine could not be built ({said.kind}: {said.message})")
