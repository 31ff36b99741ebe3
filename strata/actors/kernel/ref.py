"""How others reach an actor: tell it, or ask it and wait for its answer.  Knows a mailbox, not who reads it.

An answer always comes: the actor's own, its error, or `ActorGone` when it ends without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import trio

from strata.actors.kernel.mailbox import Mailbox
from strata.errors import ActorGone

M = TypeVar("M", contravariant=True)
R = TypeVar("R")

_PENDING: Final = object()


class Reply(Generic[R]):
    """The slot that an asker's message carries.  Its actor answers it once, at any time and from any place.

    What comes after the asker left, or after the actor ended, is ignored: neither can know of the other in time.
    """

    __slots__ = ("_asker", "_error", "_open", "_value")

    def __init__(self, open_replies: set[Reply[Any]]) -> None:
        self._open = open_replies
        self._asker: trio.lowlevel.Task | None = None
        self._value: R | object = _PENDING
        self._error: Exception | None = None
        open_replies.add(self)

    def __repr__(self) -> str:
        return f"<Reply {'waited for' if self in self._open else 'settled'}>"

    def answer(self, value: R) -> None:
        """Give the asker `value`.  Only the first answer counts."""
        if self in self._open:
            self._value = value
            self._settle()

    def refuse(self, error: Exception) -> None:
        """Raise `error` in the asker.  Only the first answer counts."""
        if self in self._open:
            self._error = error
            self._settle()

    async def wait(self) -> R:
        """The answer.  Raises what it was refused with; cancelled, it gives up its claim."""
        if self._value is _PENDING and self._error is None:
            self._asker = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()
        if self._error is not None:
            raise self._error
        return cast(R, self._value)

    def _settle(self) -> None:
        self._open.discard(self)
        asker, self._asker = self._asker, None
        if asker is not None:
            trio.lowlevel.reschedule(asker)

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._asker = None
        self._open.discard(self)
        return trio.lowlevel.Abort.SUCCEEDED


class Ref(Generic[M]):
    """An actor's address.  Keeps working, without effect, when the actor is gone."""

    __slots__ = ("_mailbox", "_open", "id", "tell")

    def __init__(self, id: str, mailbox: Mailbox[M]) -> None:
        self.id = id
        self._mailbox = mailbox
        # None: nobody has asked yet.
        self._open: set[Reply[Any]] | None = None
        self.tell: Callable[[M], None] = mailbox.tell
        """Put a message in its mailbox: at once, in order.  Raises Overloaded; dropped when the actor is gone."""

    def __repr__(self) -> str:
        return f"<Ref {self.id}{' (gone)' if self.gone else ''}>"

    @property
    def gone(self) -> bool:
        """Whether the actor has ended, so that what it is told is dropped."""
        return self._mailbox.closed

    @property
    def asked(self) -> int:
        """How many wait for an answer."""
        return len(self._open or ())

    async def ask(self, wish: Callable[[Reply[R]], M]) -> R:
        """Tell it `wish(reply)` and wait until it answers the reply.

        Raises what it refuses with, Overloaded, and ActorGone when it ends, or has ended, without an answer.
        """
        if self._mailbox.closed:
            await trio.lowlevel.checkpoint()
            raise ActorGone(self.id)
        if self._open is None:
            self._open = set()
        reply: Reply[R] = Reply(self._open)
        try:
            self.tell(wish(reply))
            return await reply.wait()
        finally:
            self._open.discard(reply)

    def close(self) -> None:
        """The actor has ended: refuse all that it has not answered.  For its supervisor."""
        self._mailbox.close()
        for reply in tuple(self._open or ()):
            reply.refuse(ActorGone(self.id))
