"""A small actor kernel.  Knows only Trio; nothing of models, engines or requests.

An actor is a mailbox and one `run`; others hold its `Ref`.  A supervisor owns its task, a registry knows its name, and
one table says what may become of it.  See docs/design.md.
"""

from strata.actors.kernel.actor import Actor, ActorInfo
from strata.actors.kernel.faults import lone
from strata.actors.kernel.lifecycle import ActorChange, ActorState, diagram
from strata.actors.kernel.mailbox import Mailbox
from strata.actors.kernel.reader import LoneReader
from strata.actors.kernel.ref import Ref, Reply
from strata.actors.kernel.registry import Registry
from strata.actors.kernel.supervisor import OnFailure, Supervisor, open_supervisor

__all__ = [
    "Actor",
    "ActorChange",
    "ActorInfo",
    "ActorState",
    "LoneReader",
    "Mailbox",
    "OnFailure",
    "Ref",
    "Registry",
    "Reply",
    "Supervisor",
    "diagram",
    "lone",
    "open_supervisor",
]
