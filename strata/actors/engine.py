"""The engine's place among the actors.  Knows a host by its face, and who wants the facts; no model and no scheduler.

One actor is one incarnation of the engine: its successor is another actor with another ref.  So what is told to a dead
engine is dropped with its mailbox, and what a dead engine still says is dropped here.  Facts go from the host to their
reader in the call in which they come, without a task between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from strata.actors.kernel import Actor, Ref, lone
from strata.engine.host import EngineHost, Killable
from strata.errors import EngineUnavailable, StartError
from strata.messages import PROTOCOL, EngineDied, FromEngine, Ready, Stop, Stopped, ToEngine

_TURNS: Final = frozenset({Ready, Stopped, EngineDied})
"""The facts that change what this actor is; all others only pass."""


class EngineActor(Actor[ToEngine]):
    """Runs the host, forwards what it is told, in order, and tells `facts` what the engine says.

    It is *starting* until the engine is ready.  `facts` hears `Ready` first and `EngineDied` exactly once, whatever
    the engine died of; after that, or after `Stopped`, nothing.  An engine that can't start, or dies, makes it fail:
    with the host's own StartError before it was ready, else with EngineUnavailable.
    """

    kind = "engine"
    says_when_running = True
    # Those above it end first; then its supervisor stops it.
    shielded = True

    def __init__(
        self,
        host: EngineHost,
        facts: Ref[FromEngine],
        *,
        incarnation: int = 1,
        start_after_s: float = 0.0,
        stop_timeout_s: float = 10.0,
        id: str = "engine",
    ) -> None:
        """`start_after_s`: how long it waits before it brings the engine up.  `stop_timeout_s`: how long the engine may
        take to stop, or to be cleared away when it died."""
        super().__init__(id)
        self.incarnation = incarnation
        self.ready: Ready | None = None
        """What the engine has; None until it is up."""
        self.dropped = 0
        """Facts of other incarnations, and those that came too late."""
        self._host = host
        self._facts = facts
        self._start_after_s = start_after_s
        self._stop_timeout_s = stop_timeout_s
        self._mine = False
        self._told_to_stop = False
        self._abandoned = False
        """Whether it was told to stop before it was ready, and ends at once."""
        self._last_words: Stopped | EngineDied | None = None
        self._cause: BaseException | None = None
        # The engine is stopped by a message and waited for; a cancellation of its actor alone must not tear it.
        self._host_scope = trio.CancelScope(shield=True)
        self._forwarding = trio.CancelScope()

    @property
    def ends_soon(self) -> bool:
        """Whether it would if it were stopped now: it is ready, or its host needn't wait until it is."""
        return self.ready is not None or (isinstance(self._host, Killable) and self._host.ends_at_once)

    async def run(self) -> None:
        """Until the engine has stopped or died, or this actor is stopped, which stops the engine."""
        await trio.sleep(self._start_after_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_host)
            try:
                with self._forwarding:
                    await self._forward()
            finally:
                self._stop_engine()

    async def _forward(self) -> None:
        while True:
            for message in await self.mailbox.receive_batch():
                self._pass_on(message)

    def _pass_on(self, message: ToEngine) -> None:
        if isinstance(message, Stop):
            self._stop_engine()
            return
        try:
            self._host.tell(message)
        except Exception as error:
            self._give_up(f"it can't be told {type(message).__name__}: {_say(error)}", error)

    def _stop_engine(self) -> None:
        """Once, and not if it has ended."""
        if self._last_words is None and not self._told_to_stop:
            self._told_to_stop = True
            self._bound_the_end()
            self._host.tell(Stop())
            # One that is being built would not hear of it before it is.
            if self.ready is None and self.ends_soon:
                self._abandoned = True
                self._host_scope.cancel()

    def _bound_the_end(self) -> None:
        self._host_scope.deadline = trio.current_time() + self._stop_timeout_s

    async def _keep_host(self) -> None:
        """Run the host, and say how it ended if it did not.  Raises what this actor fails with."""
        try:
            with self._host_scope:
                await self._host.run(self._deliver, task_status=_WhenReady(self._came_up))
        except Exception as error:
            cause = lone(error)
            self._die(_say(cause), cause=cause)
        finally:
            if self._abandoned:
                self._turn(Stopped())
            self._die(self._why_it_ended())
            self._forwarding.cancel()
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._raise_death()

    def _why_it_ended(self) -> str:
        if self._host_scope.cancelled_caught:
            return f"the engine did not stop within {self._stop_timeout_s:g} s"
        return "the engine's host ended without a word"

    def _raise_death(self) -> None:
        if isinstance(self._cause, StartError) and self.ready is None:
            raise self._cause
        if isinstance(self._last_words, EngineDied):
            raise EngineUnavailable(self._last_words.reason) from self._cause

    def _came_up(self, ready: Ready) -> None:
        if ready.protocol != PROTOCOL:
            self._give_up(f"the engine speaks protocol {ready.protocol}, this server {PROTOCOL}")
        elif ready.incarnation != self.incarnation:
            self._give_up(f"the host brought up engine {ready.incarnation} in the place of {self.incarnation}")
        elif self.ready is None and self._last_words is None and not self._abandoned:
            self.ready = ready
            self._mine = True
            self._facts.tell(ready)
            self.now_running()

    def _give_up(self, reason: str, cause: Exception | None = None) -> None:
        self._die(reason, cause=cause)
        self._host_scope.cancel()

    def _deliver(self, fact: FromEngine) -> None:
        if type(fact) in _TURNS:
            self._turn(fact)
        elif self._mine and self._last_words is None:
            self._facts.tell(fact)
        else:
            self.dropped += 1

    def _turn(self, fact: FromEngine) -> None:
        match fact:
            case Ready() if self.ready is None:
                self._came_up(fact)
            case Ready():
                self._mine = fact.incarnation == self.incarnation
            case Stopped() if self._told_to_stop and self._last_words is None:
                self._last_words = fact
                self._facts.tell(fact)
            case Stopped():
                self._die("the engine stopped without being told to")
            case EngineDied():
                self._die(fact.reason, fact.last_step)

    def _die(self, reason: str, last_step: int | None = None, *, cause: BaseException | None = None) -> None:
        """Say that the engine is dead, unless its last words have been said."""
        self._cause = self._cause or cause
        if self._last_words is None:
            self._last_words = EngineDied(reason, last_step)
            self._facts.tell(self._last_words)
            self._bound_the_end()
            self._forwarding.cancel()


def _say(error: BaseException) -> str:
    """A StartError is written for people; any other needs its name."""
    return str(error) if isinstance(error, StartError) else f"{type(error).__name__}: {error}"


class _WhenReady:
    """A task status that calls back: the host's start is heard in the call in which it is said."""

    def __init__(self, call: Callable[[Ready], None]) -> None:
        self._call = call

    def started(self, value: Ready | None = None) -> None:
        if value is None:
            raise TypeError("a host starts with what its engine has")
        self._call(value)
