"""The actors as people see them: Unix times, a request's own states, figures, and no word of any text.

Only looks; knows no clock but the one offset that turns Trio's seconds into Unix time.
"""

from __future__ import annotations

import time

import trio
from attrs import frozen

from strata.actors.dispatcher import Dispatcher
from strata.actors.kernel import Actor, Registry
from strata.actors.kernel import ActorInfo as KernelInfo
from strata.actors.memory import Past
from strata.actors.request import RequestActor
from strata.errors import UnknownRequest
from strata.messages import Cancelled, Completed, Failed, Figures, Outcome, Seq
from strata.scheduling.lifecycle import State


@frozen(kw_only=True)
class ActorInfo:
    """One actor of the tree.  `figures` are a request's."""

    id: str
    kind: str
    state: str
    since: float
    """Unix time of the last change of state."""
    mailbox: int
    """Messages that wait."""
    parent: str | None
    restarts: int = 0
    figures: Figures | None = None


@frozen
class Change:
    """One step of an actor's history; `at` is Unix time."""

    state: str
    at: float
    reason: str


@frozen(kw_only=True)
class ActorDetail:
    info: ActorInfo
    history: tuple[Change, ...]
    outcome: str | None = None
    """`completed (stop)`, `cancelled by client`, `failed: ...` of a request that has ended."""


class Inspection:
    """Looks at one runtime's actors."""

    def __init__(self, registry: Registry, dispatcher: Dispatcher) -> None:
        self._registry = registry
        self._dispatcher = dispatcher
        self._opened = time.time()
        self._epoch = self._opened - trio.current_time()

    def tree(self, *, root: str, state: str) -> tuple[ActorInfo, ...]:
        """Every actor that lives, each after its parent; before them the `root` that all have, in `state`."""
        top = ActorInfo(id=root, kind=root, state=state, since=self._opened, mailbox=0, parent=None)
        return (top, *(self._info(self._registry.find(info.id), info) for info in self._registry.tree()))

    def actor(self, id: str) -> ActorDetail:
        """One that lives, or one of the last requests that ended.  Raises UnknownRequest."""
        if id in self._registry:
            return self._living(self._registry.find(id))
        return self._ended(id, self.past(id))

    def past(self, id: str) -> Past:
        """One of the last requests that ended.  Raises UnknownRequest."""
        kind, _, number = id.rpartition("-")
        past = self._dispatcher.past.get(Seq(int(number))) if kind == RequestActor.kind and number.isdecimal() else None
        if past is None:
            raise UnknownRequest(f"there is no actor {id!r}, and no request of that id among the last that ended")
        return past

    def _info(self, actor: Actor[object], info: KernelInfo) -> ActorInfo:
        state, since, figures = str(info.state), info.since, None
        if isinstance(actor, RequestActor):
            figures = actor.figures()
            state = figures.state
            history = self._dispatcher.changes(actor.seq)
            since = history[-1].at if history else since
        return ActorInfo(
            id=info.id,
            kind=info.kind,
            state=state,
            since=since + self._epoch,
            mailbox=info.depth,
            parent=info.parent,
            restarts=info.restarts,
            figures=figures,
        )

    def _living(self, actor: Actor[object]) -> ActorDetail:
        if isinstance(actor, RequestActor):
            steps = [(str(c.state), c.at, c.reason) for c in self._dispatcher.changes(actor.seq)]
        else:
            steps = [(str(c.state), c.at, c.reason) for c in actor.history]
        history = tuple(Change(state, at + self._epoch, reason) for state, at, reason in steps)
        return ActorDetail(info=self._info(actor, actor.info()), history=history)

    def _ended(self, id: str, past: Past) -> ActorDetail:
        history = tuple(Change(str(c.state), c.at + self._epoch, c.reason) for c in past.history)
        info = ActorInfo(
            id=id,
            kind=RequestActor.kind,
            state=str(State.DONE),
            since=history[-1].at if history else self._epoch,
            mailbox=0,
            parent=None,
            figures=past.figures,
        )
        return ActorDetail(info=info, history=history, outcome=in_words(past.outcome))


def in_words(outcome: Outcome) -> str:
    match outcome:
        case Completed(reason):
            return f"completed ({reason})"
        case Cancelled(by):
            return f"cancelled by {by}"
        case Failed(error):
            return f"failed: {error}"
