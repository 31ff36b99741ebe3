"""Whose work runs next.  Knows every request's state, order and pages; no clock, no device, no client, no waiting.

Facts and wishes come in, each with its time; `decide` says what the engine is to do now.  The rules are numbered as in
docs/scheduling.md.
"""

from __future__ import annotations

from math import inf

from strata.config import OnEngineDeath, SchedulerSettings
from strata.errors import IllegalTransition, StrataError
from strata.messages import (
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
    SwappedIn,
    SwappedOut,
)
from strata.scheduling.admission import Admission
from strata.scheduling.decision import Decision, Statistics
from strata.scheduling.lending import Lending, Served
from strata.scheduling.lifecycle import Change, Event, State, reason_of
from strata.scheduling.overview import Overview
from strata.scheduling.pace import Pace
from strata.scheduling.placing import Placed, Placing
from strata.scheduling.purse import Purses
from strata.scheduling.recent import Recent
from strata.scheduling.record import Record, must_be_whole
from strata.scheduling.rows import Rows
from strata.scheduling.rules import changes_at, lacks_only_pages
from strata.scheduling.saying import Saying
from strata.scheduling.steps import Steps
from strata.scheduling.supply import Supply
from strata.scheduling.suspects import Suspects, who_ran
from strata.scheduling.view import oldest
from strata.scheduling.waiting import Waiting


class Scheduler:
    """One decision function over all requests (R1).

    `pages` of `page_tokens` tokens are what the engine has allocated, `slots` how many more its arena holds, and
    `workspaces` how many half-done chunks it can keep.  Times are monotonic seconds and never run backwards.
    """

    def __init__(
        self, settings: SchedulerSettings, *, pages: int, page_tokens: int, workspaces: int = 2, slots: int = 0
    ) -> None:
        self._settings = settings
        self._supply = Supply(settings, pages=pages, page_tokens=page_tokens, slots=slots)
        self._waiting = Waiting()
        self._rows = Rows(settings.max_running)
        self._purses = Purses(share=settings.order_share, burst_s=settings.pass_burst_s)
        self._pace = Pace()
        self._admission = Admission(settings, self._waiting, self._pace, self._supply)
        self._steps = Steps(read_share=settings.read_share)
        self._records: dict[Seq, Record] = {}
        self._started: dict[Seq, Record] = {}
        self._lending = Lending(settings, self._supply, self._rows, self._records, self._started)
        self._saying = Saying(settings, self._rows, self._supply, self._steps, self._started)
        self._suspects = Suspects()
        self._placing = Placing(
            settings,
            waiting=self._waiting,
            rows=self._rows,
            purses=self._purses,
            pace=self._pace,
            steps=self._steps,
            supply=self._supply,
            lending=self._lending,
            suspects=self._suspects,
            started=self._started,
        )
        self._overview = Overview(
            waiting=self._waiting,
            rows=self._rows,
            purses=self._purses,
            pace=self._pace,
            steps=self._steps,
            supply=self._supply,
            lending=self._lending,
            placing=self._placing,
            workspaces=workspaces,
        )
        self._closes: list[Seq] = []
        self._ended: dict[Seq, tuple[Record, Outcome]] = {}
        self._taken: dict[Seq, Record] = {}
        self._past = Recent()
        self._withdrawn = Recent()

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
        record.done, record.total = fact.done, fact.total
        self._waiting.needs_less(record)

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
            self._lending.worked()
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

    def swapped_out(self, fact: SwappedOut) -> None:
        self._pace.pages_out += len(fact.pages)
        self._pace.moves_s += fact.seconds
        self._supply.pages.swapped_out(fact.seq, fact.pages)

    def swapped_in(self, fact: SwappedIn) -> None:
        self._pace.pages_in += len(fact.pages)
        self._pace.moves_s += fact.seconds
        self._supply.pages.swapped_in(fact.seq, fact.pages)

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
        ran = who_ran(self._started, self._steps, step, workspaces=self._overview.workspaces)
        suspects = ran if blamed else frozenset[Seq]()
        for record in list(self._started.values()):
            record.deaths += record.seq in suspects
            if self._settings.on_engine_death is OnEngineDeath.REPLAY and record.deaths <= self._settings.max_replays:
                self._queue_again(record, now, suspected=record.seq in suspects)
            else:
                self._end(record, Failed(error), now)
        self._closes.clear()
        self._supply.forget()
        self._lending.forget()
        self._steps.forget()

    def wait_for_engine(self, now: float) -> float | None:
        """In the place of `decide` while there is no engine: end who waited too long, and say when to ask again."""
        self._end_what_waited_too_long(now)
        at = self._admission.overdue_at()
        return at if at < inf else None

    def renew(self, *, pages: int, page_tokens: int, workspaces: int, now: float, slots: int = 0) -> None:
        """Another engine is up and has these pages, all of them free.  Who can never fit them ends (R6, R10)."""
        self._overview.workspaces = workspaces
        self._supply.renew(pages=pages, page_tokens=page_tokens, slots=slots)
        self._lending.forget()
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
        placed = self._arrange(now)
        served = self._serve()
        while self._supply.swaps and served.changed:
            # What is granted may have been cached, and who meant to share it has another need now.
            placed += self._arrange(now)
            served.add(self._serve())
        closes, self._closes = tuple(self._closes), []
        if self._supply.swaps:
            # After pages were given, as what was promised ahead is missing to others.
            self._lending.look(lacks_only_pages(self._placing.view(now)), now)
        stops = self._reader_stops(now)
        step = self._saying.say(stops=stops, finishes=served.finishes, parks=placed.parks, now=now)
        return Decision(
            step=step,
            opens=placed.opens,
            grants=served.grants,
            moves=tuple(served.moves),
            closes=closes,
            # Moves of pages make room, or take it.
            wake_at=self._wake_at(None if self._supply.swaps else placed.until, now),
        )

    def _wake_at(self, until: float | None, now: float) -> float | None:
        """The earliest time at which time alone may change the answer; `until`, if it is known, as far as moves go."""
        if until is None:
            until = changes_at(self._placing.view(now))
        # None of them is past: whose time had come was heard.
        at = min(until, self._admission.overdue_at(), self._lending.changes_at(now))
        return at if at < inf else None

    def _end_what_waited_too_long(self, now: float) -> None:
        while (overdue := self._admission.overdue(now)) is not None:
            record, error = overdue
            self._end(record, Failed(error), now)

    def _arrange(self, now: float) -> Placed:
        return self._placing.arrange(now)

    def _serve(self) -> Served:
        return self._lending.serve(self._saying.has_let_go)

    def _reader_stops(self, now: float) -> bool:
        return self._placing.reader_stops(now)

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
        return self._overview.statistics(
            now, started=self._started.values(), ended=len(self._ended), refused=self._admission.refused
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
        self._lending.worked()
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
        if oldest(record.priority, self._rows, self._waiting, self._lending.room(now)) is record:
            self._purses.earn(record.priority, seconds)
        else:
            overrun_s = self._pace.overrun_s(self._settings.finish_tokens)
            self._purses.spend(record.priority, seconds, overrun_s=overrun_s)

    def _end(self, record: Record, outcome: Outcome, now: float) -> None:
        if not self._unfile(record):
            self._rows.leave(record)
        self._supply.end(record)
        self._started.pop(record.seq, None)
        self._lending.runs_or_gone(record.seq)
        self._suspects.discard(record)
        record.change(Event.ENDED, reason_of(outcome), now)
        del self._records[record.seq]
        self._past.add(record.seq)
        self._ended[record.seq] = (record, outcome)
        self._overview.ended[type(outcome).__name__.lower()] += 1
