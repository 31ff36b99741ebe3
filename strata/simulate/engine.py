"""An engine that only keeps the time.  Obeys step messages as the real one does, and computes its next event.

From a boundary it takes all slices and steps up to the next event at once: the end of a chunk or of an answer, a bound
that it is given, or a time.  Pages are never short here: the ledger grants them before they are needed.
"""

from __future__ import annotations

from math import inf

from attrs import define

from strata.messages import ChunkRead, Close, Decoded, Row, Seq, Step
from strata.scheduling.spans import ANY, FIRST, ChunksRead, Span, Steady, Taken
from strata.simulate.cost import CONTEXT_SPAN, TICKS, CostModel
from strata.simulate.leap import Beside, Leap, beside, decode_alone, read_alone

Fact = Taken | Span | ChunksRead | ChunkRead | Decoded


@define(eq=False)
class Sequence:
    """What the engine knows of one sequence."""

    seq: Seq
    prompt: int
    answer: int
    """Tokens."""
    position: int = 0
    written: int = 0
    done: int = 0
    total: int = 0
    """Slices of the chunk under way; 0: none is."""
    slice_s: float = 0.0

    @property
    def unread(self) -> bool:
        return self.position < self.prompt


@define(eq=False)
class Work:
    """What runs from a boundary on, until an event."""

    reader: Sequence | None
    decoders: tuple[Sequence, ...] = ()
    rows: tuple[Seq, ...] = ()
    """Theirs."""
    step_s: float = 0.0
    until_dearer: int = 0
    """Steps until one of the decoders comes into its next span, or has written its last token."""
    gain: float = 0.0


class SimulatedEngine:
    """One slice or decode step at a time, as everybody else sees it."""

    def __init__(self, cost: CostModel, *, chunk_tokens: int, workspaces: int) -> None:
        self.now = 0.0
        """The last boundary (seconds)."""
        self.next_boundary = inf
        """When the slice or step under way is done."""
        self.ran_out = False
        """Whether the last run went as far as work alone may, so that there may be something to decide."""
        self._cost = cost
        self._chunk_tokens = chunk_tokens
        self._workspaces = workspaces
        self._sequences: dict[Seq, Sequence] = {}
        self._inbox: list[Sequence | Close | Step] = []
        self._facts: list[Fact] = []
        self._step = Step(0)
        self._waiting: Step | None = None
        self._half_read: dict[Seq, None] = {}
        """Those with a half-done chunk; whose slice ran last is the last."""
        self._credit = 0.0
        self._shared = False
        """Whether what ran last was a read beside decoders."""
        self._unread_step_s = 0.0
        """Of the last decode step, while no slice has run since; 0: one has."""
        self._work: Work | None = None
        self._changed = False
        """Whether somebody ended, or a chunk did, since it was chosen."""
        self._chunks: list[tuple[int, float]] = []
        """Of the first whole chunks of any prompt: how many slices, and what each takes (seconds)."""
        self._news = False
        """Whether the last choice heard something, or took a step that had waited for a workspace."""

    def __repr__(self) -> str:
        return f"<SimulatedEngine at {self.now:.3f} s, {len(self._sequences)} sequences, {self._step}>"

    # -- what it is told ----------------------------------------------------------------------------------------------

    @property
    def must_hear(self) -> bool:
        """Whether a message waits for the next boundary."""
        return bool(self._inbox)

    def open(self, seq: Seq, prompt: int, answer: int, *, known: int = 0) -> None:
        self._inbox.append(Sequence(seq, prompt, answer, position=known))

    def tell(self, message: Close | Step) -> None:
        """Heard at the next boundary; `wake` is for an engine that has none before it."""
        self._inbox.append(message)

    def wake(self, now: float) -> list[Fact]:
        """An idle engine hears at once."""
        self.now = now
        self._choose()
        return self._take_facts()

    def _hear(self) -> None:
        for message in self._inbox:
            match message:
                case Sequence():
                    self._sequences[message.seq] = message
                case Step():
                    self._waiting = message
                case Close(seq):
                    self._forget(seq)
        self._inbox.clear()

    def _hear_what_changes_nothing(self) -> None:
        """A step that says what runs already need not be waited for: it will be in force from the next boundary on."""
        step, work, before = self._inbox[0], self._work, self._step
        if len(self._inbox) > 1 or not isinstance(step, Step) or work is None or work.reader is not None:
            return
        self._step = step
        if self._named_reader(step) is None and self._decoders() == work.decoders:
            self._inbox.clear()
            self._facts.append(Taken(step.n, self.next_boundary))
        else:
            self._step = before

    def _forget(self, seq: Seq) -> None:
        self._sequences.pop(seq, None)
        self._half_read.pop(seq, None)

    # -- whose turn it is ---------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """At a boundary: hear what was told, and begin what is next."""
        self._news = bool(self._inbox)
        if self._inbox:
            self._hear()
        if self._waiting is not None:
            self._take(self._waiting)
            self._news = self._news or self._waiting is None
        work = self._work
        if self._news or self._changed or work is None:
            work = self._work = self._begin()
            self._changed = False
        elif work.decoders and not work.until_dearer:
            self._plan_steps(work)
        if work is None:
            self.next_boundary = inf
        elif work.reader is not None and (not work.decoders or self._credit > 0):
            self.next_boundary = self.now + work.reader.slice_s
        else:
            self.next_boundary = self.now + work.step_s

    def _begin(self) -> Work | None:
        """What is to run from now on."""
        reader, decoders = self._reader(), self._decoders()
        if reader is not None and not reader.total:
            self._begin_chunk(reader)
        self._share(reader is not None and bool(decoders))
        if not decoders:
            return None if reader is None else Work(reader)
        work = Work(reader, decoders, tuple([one.seq for one in decoders]))
        self._plan_steps(work)
        return work

    def _share(self, both: bool) -> None:
        """Credit begins with what the step before earns, so that a reader that comes does not wait for another (R4)."""
        if not both or not self._shared:
            self._credit = self._earned(self._unread_step_s) if both and self._unread_step_s else 0.0
        self._shared = both

    def _earned(self, step_s: float) -> float:
        share = self._step.read_share
        return max(round(step_s * share / (1 - share) * TICKS), round(self._step.gap_s * TICKS)) / TICKS

    def _take(self, step: Step) -> None:
        """Bring it into force, unless its reader must wait for a workspace."""
        reader = self._named_reader(step)
        if reader is None or self._has_workspace(reader):
            self._step, self._waiting = step, None
            self._facts.append(Taken(step.n, self.now))

    def _reader(self) -> Sequence | None:
        if self._waiting is not None:
            return self._last_half_read()
        reader = self._named_reader(self._step)
        if reader is None or self._has_workspace(reader):
            return reader
        return self._last_half_read()

    def _named_reader(self, step: Step) -> Sequence | None:
        reader = None if step.read is None else self._sequences.get(step.read)
        if reader is None or not reader.unread:
            return None
        return reader if step.read_until is None or reader.position < step.read_until else None

    def _has_workspace(self, reader: Sequence) -> bool:
        return reader.done > 0 or len(self._half_read) < self._workspaces

    def _last_half_read(self) -> Sequence:
        return self._sequences[next(reversed(self._half_read))]

    def _decoders(self) -> tuple[Sequence, ...]:
        step, known = self._step, self._sequences
        named = step.decode if step.read is None or step.read in step.decode else (*step.decode, step.read)
        return tuple([one for seq in named if (one := known.get(seq)) is not None and one.position >= one.prompt])

    def _begin_chunk(self, reader: Sequence) -> None:
        start, whole = reader.position, self._chunk_tokens
        tokens = self._chunk_end(reader) - start
        reader.done = 0
        if tokens == whole:
            reader.total, reader.slice_s = self._whole_chunk(start // whole)
        else:
            reader.total, reader.slice_s = self._cost.slices(tokens), self._cost.slice_seconds(tokens, start)

    def _whole_chunk(self, at: int) -> tuple[int, float]:
        """Slices of the chunk at this place of the grid, and what each takes."""
        known, tokens = self._chunks, self._chunk_tokens
        while len(known) <= at:
            start = len(known) * tokens
            known.append((self._cost.slices(tokens), self._cost.slice_seconds(tokens, start)))
        return known[at]

    def _chunk_end(self, reader: Sequence) -> int:
        chunk = self._chunk_tokens
        return min(reader.prompt, (reader.position // chunk + 1) * chunk)

    def _plan_steps(self, work: Work) -> None:
        """What a step takes from here on, and for how long."""
        spans, left = 0, 1 << 60
        for one in work.decoders:
            span, inside = divmod(one.prompt + one.written, CONTEXT_SPAN)
            spans += span
            left = min(left, one.answer - one.written, CONTEXT_SPAN - inside)
        work.step_s, work.until_dearer = self._cost.step_seconds(len(work.decoders), spans), left
        work.gain = self._earned(work.step_s) if work.reader is not None else 0.0

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, until: float, steady: Steady) -> list[Fact]:
        """The slice or step under way, and all after it that end by `until`, as far as `steady` and the work go.

        Up to the first end of a prompt or an answer, and of a chunk where that is something to decide about.  Not to
        be called before `next_boundary`.
        """
        chunks = steady.chunks
        if self._inbox and steady is ANY:
            self._hear_what_changes_nothing()
        while True:
            work = self._work
            assert work is not None, "an idle engine is woken, not run"
            told = bool(self._inbox)
            if not work.decoders and chunks and not told and self._waiting is None:
                read, steady = self._read_chunks(work, until, steady, chunks)
                chunks -= read
                if read and self.next_boundary > until:
                    self.ran_out = False
                    return self._take_facts()
            # With a message to hear, only what is under way.
            leap = self._leap(work, self.next_boundary if told else until, steady)
            reads = work.reader is not None and work.reader.position
            over = self._run_on(work, leap)
            if work.reader is not None and work.reader.position != reads:
                chunks -= 1
                self.ran_out = self.ran_out or chunks < 0
            # What was heard, or taken at last, was not known when it was said how far work may go on.
            self.ran_out = self.ran_out or (self._news and steady is not ANY and not steady.begins)
            if over or self.ran_out or self.next_boundary > until:
                return self._take_facts()
            steady = _rest(steady, work, leap)
            if steady.begins and self._waiting is None:
                steady = FIRST
                chunks = steady.chunks

    def _read_chunks(self, work: Work, until: float, steady: Steady, most: float) -> tuple[int, Steady]:
        """Whole chunks of one that reads alone, as far as all of it stays below; how many, and what is left of it."""
        reader = work.reader
        if reader is None or reader.done or self._step.read_until is not None:
            return 0, steady
        chunk, now, slices_left, paid_left = self._chunk_tokens, self.now, steady.slices, steady.paid_s
        first = at = reader.position // chunk
        # The prompt's last chunk is an event, and one that is not whole begins after a cached page.
        end = (reader.prompt - 1) // chunk if reader.position == at * chunk else 0
        longest_s = 0.0
        while at < end and at - first < most:
            slices, slice_s = self._whole_chunk(at)
            seconds = slices * slice_s
            if now + seconds > until or slices >= slices_left or seconds + slice_s > paid_left:
                break
            at, now, longest_s = at + 1, now + seconds, max(longest_s, seconds)
            slices_left, paid_left = slices_left - slices, paid_left - seconds
        if at > first:
            self._have_read(reader, at, now, longest_s)
            steady = Steady(steady.steps, slices_left, paid_left)
        return at - first, steady

    def _have_read(self, reader: Sequence, at: int, now: float, longest_s: float) -> None:
        """All chunks up to this place of the grid."""
        tokens = self._chunk_tokens
        slices = reader.total
        fact = ChunksRead(
            seq=reader.seq,
            position=at * tokens,
            slices=slices * (at - reader.position // tokens),
            seconds=now - self.now,
            longest_s=longest_s,
            last=(tokens, slices),
        )
        self._facts.append(fact)
        reader.position, self.now, self._unread_step_s = fact.position, now, 0.0
        self._begin_chunk(reader)
        self.next_boundary = now + reader.slice_s

    def _run_on(self, work: Work, leap: Leap) -> bool:
        """One leap; whether it ended a prompt or an answer."""
        begun, self.now = self.now, self.now + leap.seconds
        if work.reader is not None and work.decoders:
            self._credit += leap.steps * work.gain - leap.slices * work.reader.slice_s
        self._unread_step_s = 0.0 if leap.ends_with_slice else work.step_s
        over = self._tell(work, leap, begun)
        self._choose()
        return over

    def _leap(self, work: Work, until: float, steady: Steady) -> Leap:
        seconds = until - self.now
        reader = work.reader
        steps = steady.steps
        if reader is None:
            steps = min(steps, _whole(steady.paid_s, work.step_s))
            leap = decode_alone(work.step_s, min(steps, work.until_dearer), seconds)
            self.ran_out = leap.steps >= steps
            return leap
        slices = min(steady.slices, _whole(steady.paid_s, reader.slice_s))
        left = min(slices, reader.total - reader.done)
        if work.decoders:
            pace = Beside(reader.slice_s, work.step_s, work.gain, self._credit)
            leap = beside(pace, left, min(steps, work.until_dearer), seconds)
        else:
            leap = read_alone(reader.slice_s, left, seconds)
        self.ran_out = leap.slices >= slices or leap.steps >= steps
        return leap

    def _tell(self, work: Work, leap: Leap, begun: float) -> bool:
        """The facts of a leap, and what it did to the sequences; whether it ended a prompt or an answer."""
        reader, said = work.reader, leap.slices
        completes = False
        if reader is not None and leap.slices:
            reader.done += leap.slices
            completes = reader.done == reader.total
            self._half_read.pop(reader.seq, None)
            if completes:
                # A chunk's last slice is said by the chunk's end.
                said -= 1
            else:
                self._half_read[reader.seq] = None
        ended = self._write(work, leap.steps)
        if said or leap.steps:
            self._facts.append(_span(work, leap, begun, said, ended))
        if completes:
            assert reader is not None
            self._end_chunk(reader)
        self._changed = completes or bool(ended)
        return bool(ended) or (completes and reader is not None and not reader.unread)

    def _write(self, work: Work, steps: int) -> tuple[Seq, ...]:
        """Who has written its last token by it."""
        if not steps:
            return ()
        ended: tuple[Seq, ...] = ()
        work.until_dearer -= steps
        for one in work.decoders:
            one.written += steps
            if one.written == one.answer:
                ended = (*ended, one.seq)
                self._forget(one.seq)
        return ended

    def _end_chunk(self, reader: Sequence) -> None:
        reader.position = self._chunk_end(reader)
        reader.done, reader.total = 0, 0
        self._facts.append(ChunkRead(reader.seq, reader.position, reader.slice_s))
        if not reader.unread:
            reader.written = 1
            ended = reader.answer == 1
            row = Row(reader.seq, 0, "length" if ended else None)
            self._facts.append(Decoded(self._step.n, (row,), 0.0))
            if ended:
                self._forget(reader.seq)

    def _take_facts(self) -> list[Fact]:
        facts, self._facts = self._facts, []
        return facts


def _span(work: Work, leap: Leap, begun: float, slices: int, ended: tuple[Seq, ...]) -> Span:
    reader = work.reader
    if reader is None or not slices:
        read: tuple[Seq | None, float, int, int] = (None, 0.0, 0, 0)
    else:
        done = reader.done - (leap.slices - slices)
        read = (reader.seq, slices * reader.slice_s, done, reader.total)
    return Span(
        rows=work.rows if leap.steps else (),
        steps=leap.steps,
        steps_s=leap.steps * work.step_s,
        longest_step_s=work.step_s,
        first_at=begun + leap.first_step_at,
        last_at=begun + leap.last_step_at,
        longest_gap_s=leap.longest_gap_s,
        ended=ended,
        reader=read[0],
        slices=slices,
        slices_s=read[1],
        done=read[2],
        total=read[3],
    )


def _rest(steady: Steady, work: Work, leap: Leap) -> Steady:
    """How far it may still go on after a leap that stayed below."""
    if steady.steps == steady.slices == steady.paid_s == inf:
        return steady
    paid_s = leap.slices * work.reader.slice_s if work.reader is not None else leap.steps * work.step_s
    return Steady(steady.steps - leap.steps, steady.slices - leap.slices, steady.paid_s - paid_s)


def _whole(paid_s: float, each_s: float) -> float:
    """How many fit; at least one always may run."""
    return paid_s if paid_s == inf else max(1.0, paid_s // each_s)
