"""One request, from its arrival to its one end.  Knows its prompt, its text and its reader; nothing of the others.

It alone tells the dispatcher about itself, so what it says comes in order: its submit before its withdrawal, and no
withdrawal of what was never submitted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import attrs
import trio

from strata.actors.dispatcher import Enlist, ToDispatcher, ToRequest
from strata.actors.kernel import Actor, Ref
from strata.actors.prompt import Language, Prompt, prepare
from strata.actors.stream import Feed, Stream
from strata.actors.text import TextWriter
from strata.config import RequestSettings
from strata.errors import InternalError, RequestCancelled, ShuttingDown, StrataError, frames_of, new_error_id
from strata.messages import (
    Accepted,
    Cancelled,
    Completed,
    Ended,
    Failed,
    Figures,
    Outcome,
    Refused,
    Request,
    Row,
    Seq,
    Submit,
    Summary,
    Tokens,
    Withdraw,
)

log = logging.getLogger("strata")

NOTHING_YET = Figures(state="queued", prompt_tokens=0, read_tokens=0, written_tokens=0)


class Submission:
    """A request for the length of a block: entered when it is queued, left when nothing of it is left.

    A class of its own, because a generator as context manager takes several times as much for as long as it is open.
    """

    __slots__ = ("_actor", "_arrive")

    def __init__(self, arrive: Callable[[], RequestActor]) -> None:
        """`arrive` starts the actor, and may raise why not; it is called on entering."""
        self._arrive: Callable[[], RequestActor] | None = arrive

    async def __aenter__(self) -> Stream:
        """Raises why it is not queued."""
        assert self._arrive is not None
        self._actor = self._arrive()
        # With the request itself, which its actor needs no longer than until it is queued.
        self._arrive = None
        try:
            await self._actor.admitted()
        except BaseException:
            await self.__aexit__()
            raise
        return self._actor.stream

    async def __aexit__(self, *_error: object) -> None:
        self._actor.withdraw("client")
        # Short: the dispatcher's next turn, which waits for nobody.
        with trio.CancelScope(shield=True):
            await self._actor.wait_ended()


class RequestActor(Actor[ToRequest]):
    """Made when the request comes in; `arrived` (Trio's seconds) is its place in the queue, however long it tokenises.

    `figures` says where it stands while the dispatcher knows it; `left` is called with the seconds from a withdrawal
    to the moment at which nothing of it was left.
    """

    kind = "request"
    # Whoever is cancelled around it, its pages are given back first.
    shielded = True

    def __init__(
        self,
        seq: Seq,
        request: Request,
        *,
        arrived: float,
        language: Language,
        settings: RequestSettings,
        limiter: trio.CapacityLimiter,
        dispatcher: Ref[ToDispatcher],
        figures: Callable[[Seq], Figures | None],
        left: Callable[[float], None],
    ) -> None:
        super().__init__(f"request-{seq}")
        self.seq = seq
        self._request: Request | None = request
        """Until it is told to the dispatcher."""
        self._arrived = arrived
        self._language = language
        self._settings = settings
        self._limiter = limiter
        self._dispatcher = dispatcher
        self._figures = figures
        self._left = left
        self._feed = Feed()
        self.stream = Stream(self.id, self._feed, self.figures)
        self._settled = False
        self._admission: trio.Event | None = None
        """While its caller waits for it."""
        self._preparing: trio.CancelScope | None = trio.CancelScope()
        """Until it is told to the dispatcher."""
        self._withdrawn: tuple[str, float] | None = None
        self._known: Literal["not yet", "told", "forgotten"] = "not yet"
        self._last_figures: Figures | None = None

    # -- for its caller; nothing here but `admitted` waits --

    async def admitted(self) -> None:
        """Wait until it is queued.  Raises why it is not."""
        if self._settled:
            await trio.lowlevel.checkpoint()
        else:
            self._admission = self._admission or trio.Event()
            await self._admission.wait()
        if self._feed.error is not None:
            raise self._feed.error

    def withdraw(self, by: str) -> None:
        """Forget it, whatever its state.  Its task ends once nothing of it is left; a second one does nothing."""
        if self._withdrawn is not None or self._known == "forgotten":
            return
        self._withdrawn = by, trio.current_time()
        if self._known == "told":
            self._dispatcher.tell(Withdraw(self.seq, by))
        elif self._preparing is not None:
            self._preparing.cancel()

    @property
    def over(self) -> bool:
        """Whether its reader has been told how it ended, or will be with what is ready."""
        return self._feed.ended

    def figures(self) -> Figures:
        """Where it stands now; its own, over all of its life."""
        return self._last_figures or self._figures(self.seq) or NOTHING_YET

    # -- its life --

    async def run(self) -> None:
        try:
            writer = self._submit(await self._prepare())
            while self._known == "told" and writer is not None:
                self._take(await self.mailbox.receive_batch(), writer)
        except Exception as error:
            await self._give_up(error)
            raise
        finally:
            # Stopped from outside: the reader still gets an end, and the pages go back.
            self.withdraw("shutdown")
            if not self._feed.ended:
                self._fail(ShuttingDown("the server ended before this request did"))

    async def _prepare(self) -> Prompt | None:
        """The prompt; None, with the feed ended, if there is none."""
        await trio.lowlevel.checkpoint()
        assert self._request is not None
        assert self._preparing is not None
        with self._preparing:
            try:
                prompt = await self._prompt(self._request)
            except StrataError as error:
                self._fail(error)
                return None
            # A thread that was done already gives what it has, although it was cancelled.
            if self._withdrawn is None:
                return prompt
        self._forgotten(NOTHING_YET)
        self._fail(_as_error(Cancelled(self._withdrawn[0] if self._withdrawn else "shutdown")))
        return None

    async def _prompt(self, request: Request) -> Prompt:
        if self._language.is_quick(request):
            await trio.lowlevel.checkpoint()
            return prepare(request, self._language, self._settings)
        return await trio.to_thread.run_sync(
            prepare,
            request,
            self._language,
            self._settings,
            # Who leaves while a long text is tokenised does not wait for it; nobody reads what comes of it.
            abandon_on_cancel=True,
            limiter=self._limiter,
        )

    def _submit(self, prompt: Prompt | None) -> TextWriter | None:
        """Tell the dispatcher; from now on nothing here holds the prompt, which may be long."""
        self._request = self._preparing = None
        if prompt is None:
            return None
        self._known = "told"
        submit = Submit(
            self.seq,
            prompt.tokens,
            prompt.sampling,
            priority=prompt.priority,
            arrived=self._arrived,
            named_max=prompt.named_max,
            prefix=prompt.prefix,
        )
        self._dispatcher.tell(Enlist(submit, self.ref))
        return prompt.writer

    def _take(self, batch: list[ToRequest], writer: TextWriter) -> None:
        """All that is there, so that its reader is woken once."""
        rows: list[Row] = []
        end: Ended | None = None
        for message in batch:
            match message:
                case Tokens():
                    rows += message.rows
                case Accepted():
                    self._settle()
                case Refused():
                    self._forgotten(NOTHING_YET)
                    self._fail(message.error)
                case Ended():
                    self._forgotten(message.figures)
                    end = message
        self._write(rows, writer)
        if end is not None:
            self._finish(end, writer)

    def _write(self, rows: list[Row], writer: TextWriter) -> None:
        delta = writer.write(rows)
        if delta is not None:
            self._feed.push(delta)
        if writer.stopped:
            self.withdraw("stop string")

    def _finish(self, end: Ended, writer: TextWriter) -> None:
        rest = writer.close()
        if rest is not None:
            self._feed.push(rest)
        match end.outcome:
            case Completed(reason):
                # The engine may have been at its last token when the text was found to have stopped before.
                stopped = writer.stopped
                figures = attrs.evolve(end.figures, written_tokens=writer.tokens) if stopped else end.figures
                self._last_figures = figures
                self._feed.complete(Summary("stop" if stopped else reason, figures))
            case Cancelled() | Failed():
                self._fail(_as_error(end.outcome))

    # -- the end --

    def _forgotten(self, figures: Figures) -> None:
        """Nothing of it is left with the others."""
        self._known = "forgotten"
        self._last_figures = figures
        if self._withdrawn is not None:
            self._left(trio.current_time() - self._withdrawn[1])

    def _fail(self, error: StrataError) -> None:
        self._feed.fail(error)
        self._settle()

    def _settle(self) -> None:
        self._settled = True
        if self._admission is not None:
            self._admission.set()
            self._admission = None

    async def _give_up(self, error: Exception) -> None:
        """A bug of ours: its reader is told, its sequence withdrawn and waited for, the others go on."""
        error_id = new_error_id()
        log.error("%s: %s failed: %s", error_id, self.id, frames_of(error))
        if not self._feed.ended:
            self._fail(InternalError(f"something went wrong here; the log has it as {error_id}", error_id=error_id))
        self.withdraw("internal error")
        await trio.lowlevel.checkpoint()
        while self._known == "told":
            for message in await self.mailbox.receive_batch():
                if isinstance(message, Ended | Refused):
                    self._forgotten(NOTHING_YET)


def _as_error(outcome: Outcome) -> StrataError:
    """What the reader of a request that was not completed gets."""
    match outcome:
        case Failed(error):
            return error
        case Cancelled("shutdown" | "drain" as by):
            return ShuttingDown.by(by)
        case Cancelled(by):
            return RequestCancelled(by)
        case Completed():
            raise AssertionError("a completed request has a summary and no error")
