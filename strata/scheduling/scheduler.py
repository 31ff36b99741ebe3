"""Whose work runs next.  Knows every request's state, order and pages; no clock, no device, no client, no waiting.

Facts and wishes come in, each with its time; `decide` says what the engine is to do now.  The rules are numbered as in
docs/scheduling.md.
"""

from __future__ import annotations

from collections import Counter
from math import inf

from strata.config import OnEngineDeath, SchedulerSettings
from strata.errors import IllegalTransition, StrataError
from strata.messages import (
    Cancelled,
    ChunkRead,
    Completed,
    Decoded,
    Ended,
    Failed,
    Figures,
    Outcome,
    Progress,
    Row,
    Seq,
    Step,
)
from strata.scheduling.admission import Admission
from strata.scheduling.decision import Decision, Opening, Statistics
from strata.scheduling.lifecycle import Change, Event, State
from strata.scheduling.pace import Pace
from strata.scheduling.purse import Purses
from strata.scheduling.recent import Recent
from strata.scheduling.record import Protection, Record, must_be_whole
from strata.scheduling.rows import Rows
from strata.scheduling.rules import changes_at, lacks_only_pages, next_move, reader_should_stop
from strata.scheduling.steps import Steps
from strata.scheduling.supply import Supply
from strata.scheduling.suspects import Suspects, who_ran
from strata.scheduling.view import Move, View
from strata.scheduling.waiting import Room, Waiting


class Scheduler:
    """One decision function over all requests (R1).

    `pages` of `page_tokens` tokens are what the engine has allocated, `workspaces` how many half-done chunks it can
    keep.  Times are monotonic seconds and never run backwards.
    """

    def __init__(self, settings: SchedulerSettings, *, pages: int, page_tokens: int, workspaces: int = 2) -> None:
        self._settings = settings
        self._workspaces = workspaces
        self._supply = Supply(pages, page_tokens, shares=settings.prefix_cache)
        self._waiting = Waiting()
        self._rows = Rows(settings.max_running)
        self._purses = Purses(share=settings.order_share, burst_s=settings.pass_burst_s)
        self._pace = Pace()
        self._admission = Admission(settings, self._waiting, self._pace, pages=pages, page_tokens=page_tokens)
        self._steps = Steps(read_share=settings.read_share)
        self._records: dict[Seq, Record] = {}
        self._started: dict[Seq, Record] = {}
        # Queued, and was once first in rank and short of pages only: since when.
        self._blocked: dict[Seq, float] = {}
        # By priority, when one of it last started by its age.
        self._aged: dict[int, float] = {}
        self._closes: list[Seq] = []
        self._suspects = Suspects()
        self._ended: dict[Seq, tuple[Record, Outcome]] = {}
        self._taken: dict[Seq, Record] = {}
        self._past = Recent()
        self._withdrawn = Recent()
        self._parks: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._resumes = 0

    def __repr__(self) -> str:
        return f"<Scheduler {self._rows} {self._waiting} {self._supply} {self._steps}>"

    # -- requests come and go ---------------------------------------------------------------------------------------

    def submit(
        self,
        seq: Seq,
        *,
        prompt_tokens: int,
        max_tokens: int,
        priority: int,
        arrived: float,
        named_max: bool,
        now: float,
        prefix: tuple[bytes, ...] = (),
    ) -> None:
        """Queue a request.  One that was withdrawn before is dropped without a word (R9).

        `prefix`: the names of the pages that its prompt fills, in order; without them all of it is read.
        Raises PromptTooLong if it could never fit, Overloaded if the queue is full (R6), InvalidRequest for a size or
        priority that is no whole number: one such would spoil the accounts of all.
        """
        must_be_whole(prompt_tokens=prompt_tokens, max_tokens=max_tokens, priority=priority)
        if self._withdrawn.discard(seq):
            self._past.add(seq)
            return
        if seq in self._records or seq in self._past:
            raise IllegalTransition(f"sequence {seq} can't be submitted twice")
        try:
            worst = self._admission.admit(prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        except StrataError:
            self._past.add(seq)
            raise
        record = Record(
            seq=seq,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            priority=priority,
            arrived=arrived,
            named_max=named_max,
            worst=worst,
            chunk_tokens=self._settings.chunk_tokens,
            prefix=prefix,
        )
        self._supply.look_up(record)
        record.history.add(Change(State.QUEUED, now, "submitted"))
        self._records[seq] = record
        self._waiting.add(record)

    def withdraw(self, seq: Seq, outcome: Outcome, now: float) -> bool:
        """Forget a request in whatever state, also before its submit; whether it ended now (R9)."""
        record = self._records.get(seq)
        if record is None:
            if seq not in self._past:
                self._withdrawn.add(seq)
            return False
        if record.state is not State.QUEUED:
            self._closes.append(seq)
        self._end(record, outcome, now)
        return True

    def take_ended(self) -> tuple[Ended, ...]:
        """The requests that ended since the last call, each once.

        Their figures and history can still be asked for until the next call; then they are forgotten.
        """
        ended = tuple(
            Ended(seq, outcome, record.figures(record.since)) for seq, (record, outcome) in self._ended.items()
        )
        self._taken = {seq: record for seq, (record, _) in self._ended.items()}
        self._ended.clear()
        return ended

    # -- facts from the engine --------------------------------------------------------------------------------------

    def took(self, n: int, now: float) -> None:
        self._steps.took(n, now)

    def progressed(self, fact: Progress, now: float) -> None:
        record = self._started.get(fact.seq)
        if record is None or not record.reads:
            return
        self._sliced(record, fact.seconds, now)
        parked = self._unfile(record)
        record.done, record.total = fact.done, fact.total
        if parked:
            self._waiting.add(record)

    def chunk_read(self, fact: ChunkRead, now: float) -> None:
        record = self._started.get(fact.seq)
        if record is None or not record.reads:
            return
        self._sliced(record, fact.seconds, now)
        parked = self._unfile(record)
        self._pace.read_tokens += fact.position - record.position
        record.read(fact.position)
        self._supply.read(record)
        if record.position >= record.prompt_tokens:
            record.change(Event.PROMPT_READ, "prompt read", now)
            if not parked:
                self._rows.joined(record)
        if parked:
            self._waiting.add(record)
        self._suspects.clear_if_past(record)

    def decoded(self, fact: Decoded, now: float) -> tuple[Row, ...]:
        """The rows that count: those of requests that are still here.  One that has `ended` completes its request."""
        took_part = len(fact.rows) + len(fact.again)
        if took_part:
            self._pace.stepped(fact.seconds)
        part = fact.seconds / max(1, took_part)
        for seq in fact.again:
            if (record := self._started.get(seq)) is not None:
                self._stepped(record, part, now)
                record.again -= 1
        counted = tuple(row for row in fact.rows if row.seq in self._started)
        for row in counted:
            record = self._started[row.seq]
            self._stepped(record, part, now)
            record.wrote(now)
            self._pace.written_tokens += 1
            self._suspects.clear_if_past(record)
            if row.ended is not None:
                self._end(record, Completed(row.ended), now)
        return counted

    def wants(self, seq: Seq, now: float) -> None:
        """It stands at the end of its pages."""
        if (record := self._started.get(seq)) is not None:
            record.wants_since = now

    def failed(self, seq: Seq, error: StrataError, now: float) -> None:
        """The engine could not go on with this one, and has closed it."""
        if (record := self._started.get(seq)) is not None:
            self._end(record, Failed(error), now)

    def died(self, error: StrataError, now: float, *, step: int | None = None, blamed: bool = True) -> None:
        """The engine is gone: all that had state in it fail or are queued again; queued ones stay for the next (R10).

        `step`: which was in force, as far as the engine could say.  `blamed`: False, it was told to end, and nobody is
        suspected.  Ask for no decision until there is another engine.
        """
        ran = who_ran(self._started, self._steps, step, workspaces=self._workspaces)
        suspects = ran if blamed else frozenset[Seq]()
        for record in list(self._started.values()):
            record.deaths += record.seq in suspects
            if self._settings.on_engine_death is OnEngineDeath.REPLAY and record.deaths <= self._settings.max_replays:
                self._queue_again(record, now, suspected=record.seq in suspects)
            else:
                self._end(record, Failed(error), now)
        self._closes.clear()
        self._supply.forget()
        self._steps.forget()

    def wait_for_engine(self, now: float) -> float | None:
        """In the place of `decide` while there is no engine: end who waited too long, and say when to ask again."""
        self._end_what_waited_too_long(now)
        at = self._admission.overdue_at()
        return at if at < inf else None

    def renew(self, *, pages: int, page_tokens: int, workspaces: int, now: float) -> None:
        """Another engine is up and has these pages, all of them free.  Who can never fit them ends (R6, R10)."""
        self._workspaces = workspaces
        self._supply = Supply(pages, page_tokens, shares=self._settings.prefix_cache)
        self._admission.resize(pages=pages, page_tokens=page_tokens)
        self._blocked.clear()
        for record in list(self._records.values()):
            try:
                worst = self._admission.worst(record.prompt_tokens, record.max_tokens)
            except StrataError as error:
                self._end(record, Failed(error), now)
                continue
            self._waiting.remove(record)
            record.worst = worst
            # Nothing is known of it any more.
            self._supply.look_up(record)
            self._waiting.add(record)

    def _queue_again(self, record: Record, now: float, *, suspected: bool) -> None:
        if suspected:
            self._suspects.add(record)
        if not self._unfile(record):
            self._rows.leave(record)
        self._supply.end(record)
        del self._started[record.seq]
        record.lost("engine died", now)
        self._waiting.add(record)

    # -- the decision -----------------------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """What the engine is to do from its next boundary on.  Asking again changes nothing (R1)."""
        self._end_what_waited_too_long(now)
        opens, parks = self._arrange(now)
        closes, self._closes = tuple(self._closes), []
        grants = tuple(grant for record in self._rows if (grant := self._supply.grant(record)) is not None)
        step = self._steps.say(self._step(now), parks=parks, now=now)
        return Decision(step=step, opens=opens, grants=grants, closes=closes, wake_at=self._wake_at(now))

    def _wake_at(self, now: float) -> float | None:
        """The earliest time at which time alone may change the answer."""
        times = [changes_at(self._view(now)), self._admission.overdue_at(), *map(self._passed_at, self._blocked)]
        return min((at for at in times if now < at < inf), default=None)

    def _end_what_waited_too_long(self, now: float) -> None:
        while (overdue := self._admission.overdue(now)) is not None:
            record, error = overdue
            self._end(record, Failed(error), now)

    def _arrange(self, now: float) -> tuple[tuple[Opening, ...], bool]:
        """Make every move that the rules ask for: who starts now, and whether anybody was parked."""
        if self._suspects.are_in(self._rows):
            return (), False
        if (suspect := self._suspects.next(self._supply.pages.room)) is not None:
            return self._let_run_alone(suspect, now)
        opens: list[Opening] = []
        parks = False
        while True:
            view = self._view(now)
            if (blocked := lacks_only_pages(view)) is not None:
                self._blocked.setdefault(blocked.seq, now)
            if (move := next_move(view)) is None:
                return tuple(opens), parks
            parks = parks or move.parks is not None
            if (opening := self._make(move, now)) is not None:
                opens.append(opening)

    def _let_run_alone(self, suspect: Record, now: float) -> tuple[tuple[Opening, ...], bool]:
        """R10: until it has got past the point; all others are parked or wait."""
        others = tuple(self._rows)
        for record in others:
            self._park(record, "suspect", now)
        opening = self._make(Move(suspect, None, "suspect"), now)
        return () if opening is None else (opening,), bool(others)

    def _park(self, record: Record, reason: str, now: float) -> None:
        self._rows.leave(record)
        record.change(Event.PARKED, reason, now)
        record.may_pass = record.may_pass and reason not in ("purse", "turn")
        self._parks[reason] += 1
        self._waiting.add(record)

    def _make(self, move: Move, now: float) -> Opening | None:
        if move.parks is not None:
            self._park(move.parks, move.reason, now)
        starts, opening = move.starts, None
        self._waiting.remove(starts)
        if starts.state is State.QUEUED:
            opening = self._start(starts)
            starts.change(Event.STARTED, move.reason, now)
        else:
            starts.change(Event.RESUMED, move.reason, now)
            self._resumes += 1
        starts.placed, starts.runs_since, starts.slices = self._steps.next_n, now, 0
        starts.protection = self._protection(move, now)
        starts.short = starts.is_short(self._settings)
        self._rows.take(starts)
        return opening

    def _start(self, record: Record) -> Opening:
        self._started[record.seq] = record
        self._blocked.pop(record.seq, None)
        opening = self._supply.start(record)
        self._pace.cached_tokens += opening.known
        return opening

    def _protection(self, move: Move, now: float) -> Protection | None:
        if move.past is not None:
            self._aged[move.starts.priority] = now
            return Protection(now + self._settings.quantum_s, move.past)
        # An equal that takes over by its purse goes on with the quantum that its priority has by age.
        equal = move.parks is not None and move.parks.priority == move.starts.priority
        return move.parks.protection if move.parks is not None and equal else None

    def _step(self, now: float) -> Step:
        reader = self._rows.reader
        return Step(
            0,
            decode=tuple(record.seq for record in self._rows.answers),
            read=None if reader is None else reader.seq,
            read_until=None if reader is None else self._read_until(reader, now),
            read_share=self._settings.read_share,
            gap_s=self._settings.decode_gap_s if reader is not None and reader.short else 0.0,
        )

    def _read_until(self, reader: Record, now: float) -> int | None:
        """Where the reader is to stop by itself, so that it gives way at the end of a chunk (`preempt = chunk`).

        While a step that says so is on its way, only the engine knows which chunk it will meet: that one stays.
        """
        if not reader_should_stop(self._view(now)):
            return None
        until = self._steps.will_end(reader.seq) or reader.chunk_end
        return None if until >= reader.prompt_tokens else until

    # -- what can be seen -------------------------------------------------------------------------------------------

    def is_short(self, seq: Seq) -> bool:
        """Whether what it has before it is short by `short_tokens`, now; not of one that is not here."""
        record = self._records.get(seq)
        return record is not None and record.is_short(self._settings)

    def figures(self, seq: Seq, now: float) -> Figures | None:
        """What was measured of a request so far; None if it isn't known here."""
        record = self._find(seq)
        if record is None:
            return None
        return record.figures(now, ahead=self._ahead(record))

    def history(self, seq: Seq) -> tuple[Change, ...]:
        record = self._find(seq)
        return () if record is None else record.history.all()

    def statistics(self, now: float) -> Statistics:
        states = Counter({str(State.QUEUED): self._waiting.queued, str(State.DONE): len(self._ended)})
        states.update(str(record.state) for record in self._started.values())
        pages = self._supply.pages
        return Statistics(
            at=now,
            states={state: n for state, n in states.items() if n},
            running=len(self._rows),
            max_running=self._rows.limit,
            queued=self._waiting.queued,
            queued_tokens=self._waiting.queued_tokens,
            blocked=len(self._blocked),
            pages_total=pages.total,
            pages_free=pages.free,
            pages_cached=pages.cached,
            pages_held=pages.held,
            pages_reserved=pages.reserved,
            half_read=sum(1 for record in self._started.values() if record.reads and record.done),
            workspaces=self._workspaces,
            purses=dict(self._purses.all),
            steps=self._steps.newest.n,
            parks=dict(self._parks),
            resumes=self._resumes,
            ended=dict(self._outcomes),
            refused=dict(self._admission.refused),
            read_tokens=self._pace.read_tokens,
            cached_tokens=self._pace.cached_tokens,
            written_tokens=self._pace.written_tokens,
            engine_s=self._pace.engine_s,
            longest_chunk_s=self._pace.longest_chunk_s,
            longest_step_s=self._pace.longest_step_s,
            give_way_count=self._steps.give_way.count,
            give_way_s=self._steps.give_way.total_s,
            give_way_longest_s=self._steps.give_way.longest_s,
        )

    # -- inside -----------------------------------------------------------------------------------------------------

    def _find(self, seq: Seq) -> Record | None:
        record = self._records.get(seq) or self._taken.get(seq)
        if record is None and seq in self._ended:
            record, _ = self._ended[seq]
        return record

    def _ahead(self, record: Record) -> int:
        if record.state is not State.QUEUED:
            return 0
        return self._waiting.before(record) + sum(1 for r in self._started.values() if r.rank < record.rank)

    def _view(self, now: float) -> View:
        reader = self._rows.reader
        at_end = reader is not None and not reader.done and self._steps.stops_at(reader.seq, reader.position)
        return View(now, self._settings, self._rows, self._waiting, self._purses, self._room(now), self._aged, at_end)

    def _room(self, now: float) -> Room:
        pages = self._supply.pages.room
        # Once it fits it waits like all others, and only its purse says who may pass.
        passed = (
            blocked.rank
            for seq in self._blocked
            if now >= self._passed_at(seq) and (blocked := self._records[seq]).worst > pages
        )
        return Room(pages, before=min(passed, default=None))

    def _passed_at(self, seq: Seq) -> float:
        """When this one, that lacks only pages, was passed for long enough."""
        return self._blocked[seq] + self._settings.bypass_s

    def _unfile(self, record: Record) -> bool:
        """Take it out of those that wait, if it does: what it is filed under changes."""
        if record not in self._waiting:
            return False
        self._waiting.remove(record)
        return True

    def _stepped(self, record: Record, seconds: float, now: float) -> None:
        # With several rows only reading is paid for (R2): answers share each step.
        if self._rows.one:
            self._pay(record, seconds, now)
        self._ran(record, seconds)

    def _sliced(self, record: Record, seconds: float, now: float) -> None:
        self._pay(record, seconds, now)
        self._ran(record, seconds)
        record.chunk_s += seconds
        self._pace.read_for(seconds, chunk_s=record.chunk_s)

    def _ran(self, record: Record, seconds: float) -> None:
        record.engine_s += seconds
        if self._steps.has_begun(record.placed):
            record.slices += 1

    def _pay(self, record: Record, seconds: float, now: float) -> None:
        """The purse's account of engine time (R2)."""
        if self._view(now).oldest(record.priority) is record:
            self._purses.earn(record.priority, seconds)
        else:
            overrun_s = self._pace.overrun_s(self._settings.finish_tokens)
            self._purses.spend(record.priority, seconds, overrun_s=overrun_s)

    def _end(self, record: Record, outcome: Outcome, now: float) -> None:
        if not self._unfile(record):
            self._rows.leave(record)
        self._supply.end(record)
        self._started.pop(record.seq, None)
        self._blocked.pop(record.seq, None)
        self._suspects.discard(record)
        record.change(Event.ENDED, _reason(outcome), now)
        del self._records[record.seq]
        self._past.add(record.seq)
        self._ended[record.seq] = (record, outcome)
        self._outcomes[type(outcome).__name__.lower()] += 1


def _reason(outcome: Outcome) -> str:
    match outcome:
        case Completed(reason):
            return reason
        case Cancelled(by):
            return f"cancelled by {by}"
        case Failed(error):
            return f"failed: {error}"
