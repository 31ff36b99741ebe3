"""What a request may become.  The one table of it; the diagram in docs/design.md is drawn from here."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from strata.errors import IllegalTransition
from strata.messages import Cancelled, Completed, Failed, Outcome


class State(StrEnum):
    QUEUED = "queued"
    READING = "reading"
    PARKED_READING = "parked (reading)"
    DECODING = "decoding"
    PARKED_DECODING = "parked (decoding)"
    DONE = "done"

    @property
    def parked(self) -> bool:
        return self in _PARKED


_PARKED: Final = (State.PARKED_READING, State.PARKED_DECODING)


class Event(StrEnum):
    STARTED = "started"
    PARKED = "parked"
    RESUMED = "resumed"
    PROMPT_READ = "prompt read"
    REPLAYED = "replayed"
    ENDED = "ended"


TABLE: Final[dict[State, dict[Event, State]]] = {
    State.QUEUED: {
        Event.STARTED: State.READING,
        Event.ENDED: State.DONE,
    },
    State.READING: {
        Event.PARKED: State.PARKED_READING,
        Event.PROMPT_READ: State.DECODING,
        Event.REPLAYED: State.QUEUED,
        Event.ENDED: State.DONE,
    },
    State.PARKED_READING: {
        Event.RESUMED: State.READING,
        # The step that parks a read can cross the fact that its last chunk is done.
        Event.PROMPT_READ: State.PARKED_DECODING,
        Event.REPLAYED: State.QUEUED,
        Event.ENDED: State.DONE,
    },
    State.DECODING: {
        Event.PARKED: State.PARKED_DECODING,
        Event.REPLAYED: State.QUEUED,
        Event.ENDED: State.DONE,
    },
    State.PARKED_DECODING: {
        Event.RESUMED: State.DECODING,
        Event.REPLAYED: State.QUEUED,
        Event.ENDED: State.DONE,
    },
    State.DONE: {},
}


class Change(msgspec.Struct, frozen=True, gc=False):
    """One step of a request's history.  `at` is in monotonic seconds."""

    state: State
    at: float
    reason: str


def follow(state: State, event: Event) -> State:
    """The state that `event` leads to.  Raises IllegalTransition, naming both."""
    try:
        return TABLE[state][event]
    except KeyError:
        raise IllegalTransition(f"a request that is {state} can't be {event}") from None


def reason_of(outcome: Outcome) -> str:
    """Why it ended, for its history."""
    match outcome:
        case Completed(reason):
            return reason
        case Cancelled(by):
            return f"cancelled by {by}"
        case Failed(error):
            return f"failed: {error}"


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{state}" as {state.name.lower()}' for state in State if state.parked]
    lines.append(f"    [*] --> {State.QUEUED.name.lower()}: submitted")
    for state, followers in TABLE.items():
        for event, after in followers.items():
            lines.append(f"    {state.name.lower()} --> {after.name.lower()}: {event}")
    lines.append(f"    {State.DONE.name.lower()} --> [*]")
    return "\n".join(lines)
