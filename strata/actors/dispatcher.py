"""Between the requests, the scheduler and the engine.  Decides nothing itself and waits for nobody.

It takes all the messages that are there, lets the scheduler see them, asks it once what the engine should do now, and
passes on what came of it.  All that it knows of time is the scheduler's next deadline.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Literal

import trio
from attrs import define, field, frozen

from strata.actors.kernel import Actor, Ref
from strata.actors.memory import Memory
from strata.config import SchedulerSettings
from strata.errors import (
    ConfigError,
    EngineUnavailable,
    PromptTooLong,
    SequenceFailed,
    ShuttingDown,
    StrataError,
    new_error_id,
)
from strata.messages import (
    Accepted,
    Cancelled,
    ChunkRead,
    Close,
    Closed,
    Completed,
    Decoded,
    Ended,
    EngineDied,
    Failed,
    Figures,
    FromEngine,
    Open,
    Outcome,
    Progress,
    Ready,
    Refused,
    Row,
    Seq,
    SeqFailed,
    Stopped,
    Submit,
    SwappedIn,
    SwappedOut,
    ToEngine,
    Tokens,
    Took,
    Wants,
    Withdraw,
)
from strata.metrics import Metrics
from strata.scheduling.decision import Decision, Opening, Statistics
from strata.scheduling.lifecycle import Change
from strata.scheduling.scheduler import Scheduler

log = logging.getLogger("strata")

ToRequest = Accepted | Refused | Tokens | Ended


@frozen
class Enlist:
    """Queue this, and tell `reader` what becomes of it."""

    submit: Submit
    reader: Ref[ToRequest]


@frozen
class Drain:
    """End what is queued; what has started goes on."""

    by: Literal["drain", "shutdown"] = "shutdown"


@frozen
class Replacing:
    """The engine is about to be stopped; another follows."""


@frozen
class NoEngine:
    """There will be no engine any more: end all, now and later, with this."""

    error: EngineUnavailable


ToDispatcher = Enlist | Withdraw | Drain | Replacing | NoEngine | FromEngine


@define
class _Entry:
    """A living request."""

    submit: Submit
    reader: Ref[ToRequest]
    short: bool
    """As the scheduler saw it when it came."""
    started: bool = False
    """Also while it is queued again because an engine died."""
    written: array[int] = field(factory=lambda: array("i"))
    """The tokens that its reader was told."""
    read: int = 0
    """Tokens of the prompt that are read, as far as the metrics know."""
    last_token: float | None = None


@define
class _Sent:
    """Steps that the engine has not taken yet: (number, when)."""

    steps: deque[tuple[int, float]] = field(factory=deque)

    def took(self, n: int, now: float) -> float | None:
        """How long step `n` was on its way; older ones are settled with it."""
        waited = None
        while self.steps and self.steps[0][0] <= n:
            number, sent = self.steps.popleft()
            waited = now - sent if number == n else None
        return waited


class Dispatcher(Actor[ToDispatcher]):
    """One for each runtime.  It is *starting* until it has heard `Ready`.

    It outlives the engines: while there is none, requests are taken and wait.
    """

    kind = "dispatcher"
    says_when_running = True
    shielded = True

    def __init__(self, settings: SchedulerSettings, metrics: Metrics, *, id: str = "dispatcher") -> None:
        super().__init__(id)
        self.past = Memory()
        """The last requests that ended, the oldest first."""
        self.ready: Ready | None = None
        """What the engine has, or had; None before the first is up."""
        self.without: str | None = "the engine is not up yet"
        """Why there is no engine now; None while there is one."""
        self._engine: Ref[ToEngine] | None = None
        """None while there is none: then no fact of one counts either."""
        self._expected: dict[int, Ref[ToEngine]] = {}
        self._settings = settings
        self._metrics = metrics
        self._entries: dict[Seq, _Entry] = {}
        self._scheduler: Scheduler | None = None
        self._gone: StrataError | None = None
        self._draining: str | None = None
        """What for, once it takes no more."""
        self._wake_at = math.inf
        self._sent = _Sent()

    def expect(self, engine: Ref[ToEngine], incarnation: int = 1) -> None:
        """A `Ready` is to come from this engine; nothing is told to it before.

        One may be expected before its predecessor's `Ready` was seen, which can die in that moment.
        """
        self._expected[incarnation] = engine

    # -- what others may read at any time; nothing here waits --

    def figures(self, seq: Seq) -> Figures | None:
        """Where a request stands now; None of one that is neither queued nor started nor remembered."""
        if seq in self.past:
            return self.past[seq].figures
        return self._scheduler.figures(seq, trio.current_time()) if self._scheduler is not None else None

    def changes(self, seq: Seq) -> tuple[Change, ...]:
        if seq in self.past:
            return self.past[seq].history
        return self._scheduler.history(seq) if self._scheduler is not None else ()

    def statistics(self) -> Statistics:
        """The scheduler's; there is one as soon as this is *running*.

        Once this has ended nothing is left of any request, whatever the scheduler still had when this failed.
        """
        assert self._scheduler is not None
        now = self._scheduler.statistics(trio.current_time())
        return now.with_nobody() if self.state.over else now

    @property
    def started(self) -> int:
        """Requests that have started and not ended; also those that are queued again because an engine ended."""
        return 0 if self.state.over else sum(entry.started for entry in self._entries.values())

    # -- the loop --

    async def run(self) -> None:
        while True:
            batch: list[ToDispatcher] = []
            with trio.move_on_at(self._wake_at):
                batch = await self.mailbox.receive_batch()
            self.turn(batch, trio.current_time())

    def turn(self, batch: Iterable[ToDispatcher], now: float) -> None:
        """See what happened, decide once, tell everybody."""
        for message in sorted(batch, key=_precedence):
            self._see(message, now)
        if self._scheduler is None:
            return
        if self._engine is not None:
            self._send(self._scheduler.decide(now), now)
        else:
            self._wait_for_engine(self._scheduler, now)
        for ended in self._scheduler.take_ended():
            self._end(ended)

    def _see(self, message: ToDispatcher, now: float) -> None:
        match message:
            case Enlist():
                self._enlist(message, now)
            case Withdraw(seq, by):
                self._withdraw(seq, Completed("stop") if by == "stop string" else Cancelled(by), now)
            case Drain(by):
                self._draining = by
                self._end_queued(Cancelled(by), now)
            case Ready():
                self._start(message, now)
            case EngineDied():
                self._lose_engine(f"the engine died: {message.reason}", now, step=message.last_step)
            case Replacing() | Stopped():
                self._lose_engine("the engine is being replaced", now, blamed=False)
            case NoEngine(error):
                self._give_up(error, now)
            case _ if self._scheduler is not None and self._engine is not None:
                self._hear(self._scheduler, message, now)

    # -- requests --

    def _enlist(self, enlist: Enlist, now: float) -> None:
        submit = enlist.submit
        try:
            short = self._queue(submit, now)
        except StrataError as error:
            enlist.reader.tell(Refused(submit.seq, error))
        else:
            self._entries[submit.seq] = _Entry(submit, enlist.reader, short=short)
            enlist.reader.tell(Accepted(submit.seq))

    def _queue(self, submit: Submit, now: float) -> bool:
        """Whether it is a short one."""
        if self._gone is not None:
            raise self._gone
        if self._draining is not None:
            raise ShuttingDown.by(self._draining)
        if self._scheduler is None or self.ready is None:
            raise EngineUnavailable("the engine is not up yet")
        must_fit(submit, self.ready)
        self._scheduler.submit(
            submit.seq,
            prompt_tokens=len(submit.tokens),
            max_tokens=submit.sampling.max_tokens,
            priority=submit.priority,
            arrived=submit.arrived,
            named_max=submit.named_max,
            now=now,
            prefix=submit.prefix,
        )
        return self._scheduler.is_short(submit.seq)

    def _withdraw(self, seq: Seq, outcome: Outcome, now: float) -> None:
        if seq in self._entries and self._scheduler is not None:
            self._scheduler.withdraw(seq, outcome, now)

    def _end_queued(self, outcome: Outcome, now: float) -> None:
        for seq, entry in self._entries.items():
            if not entry.started:
                self._withdraw(seq, outcome, now)

    def _end(self, ended: Ended) -> None:
        """The one terminal fact, to its reader and into memory."""
        assert self._scheduler is not None
        entry = self._entries.pop(ended.seq)
        submit = entry.submit
        self._metrics.ended(ended.outcome, ended.figures, priority=submit.priority, short=entry.short)
        self.past.remember(ended, self._scheduler.history(ended.seq))
        entry.reader.tell(ended)

    # -- the engine --

    def _start(self, ready: Ready, now: float) -> None:
        """Raises ConfigError where the engine reads on another grid than the scheduler counts by."""
        if ready.chunk_tokens != self._settings.chunk_tokens:
            said = f"the engine's is {ready.chunk_tokens} and the scheduler's {self._settings.chunk_tokens}"
            raise ConfigError("chunk_tokens", f"{said}: it must be one")
        self.ready, self.without = ready, None
        # A host that counts no incarnations is the newest.
        newest = next(reversed(self._expected))
        self._engine = self._expected.pop(ready.incarnation if ready.incarnation in self._expected else newest)
        has = {
            "pages": ready.pages,
            "page_tokens": ready.page_tokens,
            "workspaces": ready.workspaces,
            "slots": ready.slots,
        }
        if self._scheduler is None:
            self._scheduler = Scheduler(self._settings, **has)
            self.now_running()
        else:
            self._end_what_no_longer_fits(self._scheduler, ready, now)
            self._scheduler.renew(**has, now=now)

    def _end_what_no_longer_fits(self, scheduler: Scheduler, ready: Ready, now: float) -> None:
        for seq, entry in self._entries.items():
            try:
                must_fit(entry.submit, ready)
            except StrataError as error:
                scheduler.withdraw(seq, Failed(error), now)

    def _lose_engine(self, reason: str, now: float, *, step: int | None = None, blamed: bool = True) -> None:
        """The one place that decides what an engine's end means.  Others say whether another comes."""
        self.without = reason
        if self._engine is None:
            return
        self._engine = None
        self._sent.steps.clear()
        if self._scheduler is not None:
            self._scheduler.died(EngineUnavailable(reason), now, step=step, blamed=blamed)

    def _wait_for_engine(self, scheduler: Scheduler, now: float) -> None:
        at = scheduler.wait_for_engine(now)
        self._wake_at = math.inf if at is None else at

    def _give_up(self, error: EngineUnavailable, now: float) -> None:
        self._lose_engine(str(error), now, blamed=False)
        self._gone = error
        for seq in tuple(self._entries):
            self._withdraw(seq, Failed(error), now)

    def _hear(self, scheduler: Scheduler, fact: ToDispatcher, now: float) -> None:
        match fact:
            case Took(n):
                scheduler.took(n, now)
                self._took(n, now)
            case Progress():
                scheduler.progressed(fact, now)
                self._metrics.slice_done(fact.seconds)
            case ChunkRead():
                scheduler.chunk_read(fact, now)
                self._chunk_read(fact)
            case Decoded():
                self._decoded(scheduler.decoded(fact, now), now)
                self._metrics.speculated(fact.drafted, accepted=fact.accepted)
                if fact.seconds:
                    self._metrics.slice_done(fact.seconds)
            case Wants(seq):
                scheduler.wants(seq, now)
            case SwappedOut():
                scheduler.swapped_out(fact)
            case SwappedIn():
                scheduler.swapped_in(fact)
            case SeqFailed(seq, text):
                scheduler.failed(seq, _logged(seq, text), now)
            case Closed():
                pass

    def _took(self, n: int, now: float) -> None:
        waited = self._sent.took(n, now)
        if waited is not None:
            self._metrics.gave_way(waited)

    def _chunk_read(self, fact: ChunkRead) -> None:
        self._metrics.slice_done(fact.seconds)
        entry = self._entries.get(fact.seq)
        if entry is not None:
            self._metrics.tokens_read(max(fact.position - entry.read, 0))
            entry.read = max(fact.position, entry.read)

    def _decoded(self, rows: Iterable[Row], now: float) -> None:
        for row in rows:
            entry = self._entries[row.seq]
            if entry.last_token is None:
                self._metrics.first_token(now - entry.submit.arrived)
            else:
                self._metrics.next_token(now - entry.last_token)
            entry.last_token = now
            self._metrics.tokens_written(1)
            entry.written.append(row.token)
            entry.reader.tell(Tokens(row.seq, (row,)))

    def _tell_engine(self, message: ToEngine) -> None:
        assert self._engine is not None
        self._engine.tell(message)

    def _send(self, decision: Decision, now: float) -> None:
        """Closes first, so that what they free can be granted in the same breath; the step last."""
        self._wake_at = math.inf if decision.wake_at is None else decision.wake_at
        for seq in decision.closes:
            self._tell_engine(Close(seq))
        for opening in decision.opens:
            self._open(self._entries[opening.seq], opening)
        for message in (*decision.grants, *decision.moves):
            self._tell_engine(message)
        if decision.step is not None:
            self._tell_engine(decision.step)
            self._sent.steps.append((decision.step.n, now))

    def _open(self, entry: _Entry, opening: Opening) -> None:
        submit = entry.submit
        entry.started, entry.read = True, max(entry.read, opening.known)
        self._metrics.looked_up(len(submit.tokens), known=opening.known)
        self._tell_engine(
            Open(submit.seq, submit.tokens, submit.sampling, opening.pages, opening.known, tuple(entry.written))
        )


def must_fit(submit: Submit, ready: Ready) -> None:
    """Raises PromptTooLong where the engine's context is too short; an earlier one's may have been longer."""
    prompt, answer = len(submit.tokens), submit.sampling.max_tokens
    if prompt + answer > ready.context:
        raise PromptTooLong(
            f"the prompt has {prompt} tokens and its answer may have {answer}, {prompt + answer} together; "
            f"the engine's context is {ready.context}",
            tokens=prompt + answer,
            limit=ready.context,
        )


def _logged(seq: Seq, text: str) -> SequenceFailed:
    """With an id that its reader gets and the log has."""
    error_id = new_error_id()
    log.error("%s: the engine could not go on with request-%s: %s", error_id, seq, text)
    return SequenceFailed(f"{text}; the log has it as {error_id}")


def _precedence(message: ToDispatcher) -> int:
    """Of what came together, a withdrawal counts before what the engine said: who leaves has left.

    But not before its own submit, and the order within each kind is kept.
    """
    match message:
        case Withdraw() | Drain():
            return 1
        case Enlist():
            return 0
        case _:
            return 2
