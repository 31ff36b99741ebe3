"""What an actor may become.  The one table of it; the diagram in docs/design.md is drawn from here.

Knows no task, no mailbox and no clock: times come in as arguments.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from attrs import frozen

from strata.errors import IllegalTransition


class ActorState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return not TABLE[self]


class ActorEvent(StrEnum):
    STARTED = "started"
    TOLD_TO_STOP = "told to stop"
    ENDED = "ended"
    FAILED = "failed"


TABLE: Final[dict[ActorState, dict[ActorEvent, ActorState]]] = {
    ActorState.STARTING: {
        ActorEvent.STARTED: ActorState.RUNNING,
        ActorEvent.TOLD_TO_STOP: ActorState.STOPPING,
        ActorEvent.ENDED: ActorState.STOPPED,
        ActorEvent.FAILED: ActorState.FAILED,
    },
    ActorState.RUNNING: {
        ActorEvent.TOLD_TO_STOP: ActorState.STOPPING,
        # It had nothing more to do, or was cancelled from outside with its whole tree.
        ActorEvent.ENDED: ActorState.STOPPED,
        ActorEvent.FAILED: ActorState.FAILED,
    },
    ActorState.STOPPING: {
        ActorEvent.ENDED: ActorState.STOPPED,
        ActorEvent.FAILED: ActorState.FAILED,
    },
    ActorState.STOPPED: {},
    ActorState.FAILED: {},
}


@frozen
class ActorChange:
    """One step of an actor's history.  `at` is in Trio's monotonic seconds; `reason` is empty unless it failed."""

    state: ActorState
    at: float
    reason: str = ""


def follow(state: ActorState, event: ActorEvent) -> ActorState:
    """The state that `event` leads to.  Raises IllegalTransition, naming both."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalTransition(f"an actor that is {state} can't be {event}") from None


class Life:
    """An actor's state and how it came to it."""

    __slots__ = ("_changes",)

    def __init__(self, now: float) -> None:
        self._changes = [ActorChange(ActorState.STARTING, now)]

    def __repr__(self) -> str:
        return f"<Life {self.state} since {self.since:.3f}>"

    @property
    def state(self) -> ActorState:
        return self._changes[-1].state

    @property
    def since(self) -> float:
        """When the present state began (Trio's seconds)."""
        return self._changes[-1].at

    @property
    def history(self) -> tuple[ActorChange, ...]:
        return tuple(self._changes)

    def step(self, event: ActorEvent, now: float, reason: str = "") -> None:
        """Follow `event`.  Raises IllegalTransition."""
        self._changes.append(ActorChange(follow(self.state, event), now, reason))


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", f"    [*] --> {ActorState.STARTING}"]
    for state, steps in TABLE.items():
        lines += [f"    {state} --> {target} : {event}" for event, target in steps.items()]
        if state.over:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)
