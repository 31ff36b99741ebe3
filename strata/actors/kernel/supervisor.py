"""Who starts actors, owns their tasks and hears of their failures.  Knows nothing of what they do.

Its nursery is the only place where its actors' tasks live, so none outlives it; leaving it stops them all.  Inside an
actor's `run` it makes a tree, and the nesting is the order of shutdown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

import trio

from strata.actors.kernel.actor import Actor, ActorInfo
from strata.actors.kernel.faults import lone
from strata.actors.kernel.ref import Ref
from strata.actors.kernel.registry import Registry
from strata.errors import ActorGone

M = TypeVar("M")

OnFailure = Literal["escalate"] | Callable[[ActorInfo, Exception], None]
"""What a failure does.  `escalate`: it ends the supervisor and all its actors, and is raised from its block.  A
function: it is called once, in the loop, after the actor has ended, with what it was and its error (taken out of a
group of one); siblings go on.  What it raises escalates.  It may start a successor."""


class Supervisor:
    """Made by `open_supervisor`."""

    def __init__(self, registry: Registry, nursery: trio.Nursery, parent: str | None) -> None:
        self._registry = registry
        self._nursery = nursery
        self._parent = parent
        self._children: dict[str, Actor[Any]] = {}

    def __repr__(self) -> str:
        return f"<Supervisor of {len(self._children)}>"

    def spawn(self, actor: Actor[M], *, on_failure: OnFailure, restarts: int = 0) -> Ref[M]:
        """Start an actor and return at once.  `restarts`: how many of its id were there before it.

        Raises ValueError if one of its id lives, RuntimeError if the supervisor has ended.
        """
        self._adopt(actor, restarts)
        self._nursery.start_soon(self._watch, actor, on_failure, name=actor.id)
        return actor.ref

    async def start(self, actor: Actor[M], *, on_failure: OnFailure, restarts: int = 0) -> Ref[M]:
        """Start an actor and wait until it runs.  A failure before that is raised here, and nowhere else.

        Raises ActorGone if it ended before it ran; cancelled, it stops the actor.
        """
        starting = True

        def failed(info: ActorInfo, error: Exception) -> None:
            if starting:
                return
            if on_failure == "escalate":
                raise error
            on_failure(info, error)

        ref = self.spawn(actor, on_failure=failed, restarts=restarts)
        try:
            await actor.wait_started()
        except trio.Cancelled:
            actor.stop()
            raise
        finally:
            starting = False
        if actor.error is not None:
            raise actor.error
        if actor.state.over:
            raise ActorGone(actor.id)
        return ref

    def stop_all(self) -> None:
        """Tell every actor to end, the youngest first; returns at once."""
        for actor in reversed(tuple(self._children.values())):
            actor.stop()

    def _adopt(self, actor: Actor[Any], restarts: int) -> None:
        actor.parent = self._parent
        actor.restarts = restarts
        self._registry.add(actor)
        self._children[actor.id] = actor

    async def _watch(self, actor: Actor[Any], on_failure: OnFailure) -> None:
        try:
            await actor.live()
        except BaseException:
            self._forget(actor)
            if on_failure == "escalate" or actor.error is None:
                raise
            on_failure(actor.info(), actor.error)
            # Its failure is dealt with; a cancellation that came beside it comes again here.
            await trio.lowlevel.checkpoint()
        else:
            self._forget(actor)

    def _forget(self, actor: Actor[Any]) -> None:
        del self._children[actor.id]
        self._registry.remove(actor)


@asynccontextmanager
async def open_supervisor(registry: Registry, *, parent: str | None = None) -> AsyncIterator[Supervisor]:
    """A supervisor for the length of the block; `parent`: the id of the actor in whose `run` it is opened.

    At the end of the block its actors are stopped and waited for.  A lone error comes out as itself, not in a group.
    """
    raised: BaseException
    try:
        async with trio.open_nursery() as nursery:
            supervisor = Supervisor(registry, nursery, parent)
            try:
                yield supervisor
            finally:
                # Also when it is cancelled: a shielded actor would be waited for, for ever.
                supervisor.stop_all()
        return
    except BaseExceptionGroup as group:
        raised = lone(group)
        if raised is group:
            raise
    raise raised
