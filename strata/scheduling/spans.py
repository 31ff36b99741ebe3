"""Facts in sum, and how far an engine may go on before there is anything to decide.  For a simulator.

A real engine says each slice and each step as it comes.  One whose next event can be computed need not: `steady` says
how far nothing can change by work alone, as `Decision.wake_at` says it of time alone, and `ran` takes all of that work
at once.  Both give what the single facts would have given, with a decision after each.  Knows no cost and no engine.
"""

from __future__ import annotations

from math import inf
from typing import Final

import msgspec

from strata.config import Preempt
from strata.messages import ChunkRead, Completed, Ended, Seq
from strata.scheduling.decision import Decision
from strata.scheduling.lending import Served
from strata.scheduling.lifecycle import State
from strata.scheduling.placing import Placed
from strata.scheduling.record import Record
from strata.scheduling.scheduler import Scheduler
from strata.scheduling.view import View
from strata.scheduling.waiting import ANSWERS, EITHER, READS


class Span(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Slices and decode steps of one step message, that ran one after another.  Times are in monotonic seconds."""

    rows: tuple[Seq, ...] = ()
    """Each of them wrote one token in each of the steps."""
    steps: int = 0
    steps_s: float = 0.0
    """Engine time of all of them."""
    longest_step_s: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0
    """When the first and the last of the steps were done."""
    longest_gap_s: float = 0.0
    """Between two steps in a row."""
    ended: tuple[Seq, ...] = ()
    """Those of the rows whose last token was the last that was allowed."""
    reader: Seq | None = None
    slices: int = 0
    slices_s: float = 0.0
    done: int = 0
    total: int = 0
    """Where the reader's chunk stands afterwards.  It is not complete: that is a fact of its own."""


class ChunksRead(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Whole chunks of one prompt, read one after another with nobody beside them, up to `position` (tokens)."""

    seq: Seq
    position: int
    slices: int
    seconds: float
    """Engine time of all of them."""
    longest_s: float
    """Of the one that took longest."""
    last: tuple[int, int]
    """Tokens and slices of the last one."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """Step `n` came into force, at this time (monotonic seconds)."""

    n: int
    at: float


class Steady(msgspec.Struct, frozen=True, gc=False):
    """While the work stays below this, `decide` says nothing new: nobody else has to be asked in between.

    Time is the last decision's to say: its `wake_at` is never later than what time would change meanwhile.  At least
    one slice or step may always run.  Ends, whole prompts and arrivals count as events whatever this says.
    """

    steps: float = inf
    slices: float = inf
    paid_s: float = inf
    """Engine seconds of who pays from a purse, or earns for it (R2)."""
    chunks: float = inf
    """Chunk ends that are nothing to decide about; the one after them is."""
    begins: bool = False
    """Whether the reader that the newest step names has yet to begin: `FIRST` holds once that step is taken."""


FIRST: Final = Steady(slices=1, chunks=0)
BEGINS: Final = Steady(begins=True)
ANY: Final = Steady()
KINDS: Final = (EITHER, READS, ANSWERS)
ONE: Final = Steady(steps=1, slices=1, chunks=0)
NOBODY: Final = Placed(until=inf)
NOTHING: Final = Decision()


class SpanScheduler(Scheduler):
    """A scheduler that also takes spans.  Its rules are the scheduler's own: none of them is written here again."""

    def steady(self, now: float) -> Steady:
        """How far the engine may go on by itself.  Ask after `decide`."""
        if not self._waiting:
            # Every rule is about somebody who waits.
            return ANY
        taken = self._steps.newest.n == self._steps.in_force.n
        settings = self._settings
        if self._reader_has_yet_to_begin() and settings.preempt is Preempt.SLICE and not settings.min_park_tokens:
            return BEGINS
        if settings.preempt is Preempt.OFF and taken:
            return ANY
        if settings.preempt is not Preempt.SLICE or settings.min_park_tokens:
            # These look at every position.
            return ONE
        if not taken:
            return self._steady_before_it_is_taken(now)
        view = self._placing.view(now)
        payer = self._rows.reader or (self._rows.last if self._rows.one else None)
        return Steady(
            steps=self._steady_steps(),
            slices=self._steady_slices(),
            paid_s=inf if payer is None else self._steady_purse(payer, view),
            chunks=self._steady_chunks(),
        )

    def take_ended(self) -> tuple[Ended, ...]:
        """As `Scheduler.take_ended`; often there is nothing to take."""
        return super().take_ended() if self._ended or self._taken else ()

    def give_pages(self) -> None:
        """What a decision at the last boundary would have granted.

        To be asked for before anybody comes.  It matters only where a page may be taken from those that the cache
        keeps for whoever comes next.
        """
        if self._supply.shares:
            self._lending.serve(self._saying.has_let_go)

    def ran(self, span: Span, now: float) -> None:
        """All that these slices and steps did."""
        if self._supply.shares:
            self.give_pages()
        if span.slices:
            self._read_on(span, now)
        if span.steps:
            self._answered(span, now)

    def chunk_read(self, fact: ChunkRead, now: float) -> None:
        self.give_pages()
        super().chunk_read(fact, now)

    def chunks_read(self, fact: ChunksRead, now: float) -> None:
        """Whole chunks of the one that reads: as many `Scheduler.chunk_read`, none of them of its prompt's end."""
        record = self._started[fact.seq]
        self._pay(record, fact.seconds, now)
        self._ran_for(record, fact.slices, fact.seconds)
        self._pace.read_for(fact.seconds, chunk_s=fact.longest_s)
        self._pace.read_tokens += fact.position - record.position
        while self._supply.shares and record.position < fact.position:
            self.give_pages()
            record.read(record.chunk_end)
            self._supply.read(record)
        record.read(fact.position)
        record.chunk_before = fact.last

    # -- the same answers, at once, where nobody waits or lacks pages -------------------------------------------------
    # Where pages are neither moved nor shared, all that started have their worst case for themselves, and nobody asks
    # which page is whose.

    def decide(self, now: float) -> Decision:
        supply = self._supply
        if self._waiting or self._closes or supply.swaps or supply.shares:
            return super().decide(now)
        step = self._saying.say(stops=False, finishes=None, parks=False, now=now)
        return NOTHING if step is None else Decision(step)

    def _arrange(self, now: float) -> Placed:
        return super()._arrange(now) if self._waiting or self._supply.swaps else NOBODY

    def _serve(self) -> Served:
        return super()._serve() if self._supply.swaps or self._supply.shares else Served()

    def _reader_stops(self, now: float) -> bool:
        return bool(self._waiting) and super()._reader_stops(now)

    def _pay(self, record: Record, seconds: float, now: float) -> None:
        if self._waiting:
            super()._pay(record, seconds, now)
        else:
            # Who runs while nobody waits is the oldest.
            self._purses.earn(record.priority, seconds)

    # -- what would change the answer ---------------------------------------------------------------------------------

    def _reader_has_yet_to_begin(self) -> bool:
        """Whether it was placed by a step that is on its way, and no answer can lose its row.

        Nobody gives way before his first slice (R3), so all that others do meanwhile decides nothing.
        """
        rows, reader = self._rows, self._rows.reader
        if reader is None or self._steps.has_begun(reader.placed):
            return False
        if rows.one:
            # Who answers pays too, in turn with whose chunk must be read to its end: their order tells in the purse.
            return not any(seq in self._started for seq in self._steps.in_force.decode)
        return rows.free > 0

    def _steady_steps(self) -> float:
        """Until an answer has run at all, can be taken to be longer, or is spared for its end (R3)."""
        settings, steps = self._settings, inf
        if self._rows.free:
            return steps
        for record in self._rows:
            if record.reads:
                continue
            if not record.slices:
                return 1
            changes = (record.max_tokens - settings.finish_tokens, settings.expect_new_tokens)
            for written in changes[: 1 if record.named_max else 2]:
                if written > record.written:
                    steps = min(steps, written - record.written)
        return steps

    def _steady_slices(self) -> float:
        """The reader can be displaced from its first slice on; what is left of its last chunk is known after one."""
        reader = self._rows.reader
        if reader is None or (reader.slices and (reader.total is not None or not reader.in_last_chunk)):
            return inf
        return 1

    def _steady_chunks(self) -> float:
        """A reader in its last chunk may be spared (R3)."""
        reader = self._rows.reader
        if reader is None:
            return inf
        return max(0, -(-(reader.prompt_tokens - reader.chunk_end) // reader.chunk_tokens) - 1)

    def _steady_purse(self, payer: Record, view: View) -> float:
        """Until the purse lets somebody pass, or the oldest gets its turn (R3.2, R3.3)."""
        purse, burst, share = self._purses[payer.priority], self._settings.pass_burst_s, self._settings.order_share
        if view.oldest(payer.priority) is payer:
            return inf if purse > 0 else -purse * share / (1 - share)
        return inf if purse <= -burst else purse + burst

    def _steady_before_it_is_taken(self, now: float) -> Steady:
        """While the newest step waits for a workspace, a read that it parked goes on to its chunk's end."""
        ends = [r for r in self._started.values() if r.done and r.state is State.PARKED_READING]
        answers = [self._started[seq] for seq in self._steps.in_force.decode if seq in self._started]
        if not ends or any(record in self._waiting for record in answers) or (answers and self._rows.one):
            return ONE
        view = self._placing.view(now)
        return Steady(
            steps=self._steady_steps(),
            slices=min(self._steady_need(record, view) for record in ends),
            paid_s=min(self._steady_purse(record, view) for record in ends),
            chunks=0,
        )

    def _steady_need(self, parked: Record, view: View) -> float:
        """Slices of a parked read until it is the shortest, or others are short or long beside it (R2, R3.2)."""
        if not self._purses.may_pass(parked.priority):
            return inf
        shortest = view.waiting.shortest(parked.priority, view.room)
        others = [self._rows.reader, *(view.waiting.oldest(parked.priority, view.room, kinds) for kinds in KINDS)]
        marks = [self._settings.short_tokens - (parked.length(self._settings) - parked.need)]
        marks += [other.need // 2 for other in others if other is not None and other is not parked]
        if shortest is not None and shortest is not parked:
            marks += [shortest.need, 2 * shortest.need]
        need, total = parked.need, parked.total or 1
        mark = max((mark for mark in marks if mark < need), default=-1)
        # The need falls by so much with each slice, rounded either way.
        slices = (need - mark - 2) * total // (parked.chunk_end - parked.position)
        # Its last chunk is another thing near its end; the end of any other is an event.
        return max(1, min(slices, total - parked.done - 2 if parked.in_last_chunk else inf))

    # -- work in sum --------------------------------------------------------------------------------------------------

    def _read_on(self, span: Span, now: float) -> None:
        record = None if span.reader is None else self._started.get(span.reader)
        if record is None or not record.reads:
            return
        # What a purse may owe grows with the chunk: it is paid by slices, the last of them after all others.
        others_s = span.slices_s * (span.slices - 1) / span.slices
        self._pace.read_for(0.0, chunk_s=record.chunk_s + others_s)
        self._pay(record, span.slices_s, now)
        self._ran_for(record, span.slices, span.slices_s)
        record.chunk_s += span.slices_s
        self._pace.read_for(span.slices_s, chunk_s=record.chunk_s)
        record.done, record.total = span.done, span.total
        self._waiting.needs_less(record)

    def _answered(self, span: Span, now: float) -> None:
        pace, steps, in_force = self._pace, span.steps, self._steps.in_force.n
        pace.engine_s += span.steps_s
        pace.longest_step_s = max(pace.longest_step_s, span.longest_step_s)
        part, one = span.steps_s / len(span.rows), self._rows.one
        for seq in span.rows:
            if (record := self._started.get(seq)) is None:
                continue
            if one:
                self._pay(record, part, now)
            record.engine_s += part
            if in_force >= record.placed:
                record.slices += steps
            _write(record, span)
            pace.written_tokens += steps
        if span.ended:
            self._give_before_the_last(span)
        for seq in span.ended:
            if (record := self._started.get(seq)) is not None:
                self._end(record, Completed("length"), now)

    def _give_before_the_last(self, span: Span) -> None:
        """What was granted up to the last step but one: the pages of who ended were not free then."""
        if span.steps == 1 or not self._supply.shares:
            return
        answers = [self._started[seq] for seq in span.rows if seq in self._started]
        for record in answers:
            record.written -= 1
        self.give_pages()
        for record in answers:
            record.written += 1

    def _ran_for(self, record: Record, slices: int, seconds: float) -> None:
        record.engine_s += seconds
        if self._steps.has_begun(record.placed):
            record.slices += slices


def _write(record: Record, span: Span) -> None:
    """As many `Record.wrote`, one after another."""
    record.written += span.steps
    if record.last_token_at is None:
        record.first_token_at = span.first_at
        record.longest_gap_s = span.longest_gap_s
    else:
        gap = max(span.first_at - record.last_token_at, span.longest_gap_s)
        if gap > record.longest_gap_s:
            record.longest_gap_s = gap
    record.last_token_at = span.last_at
