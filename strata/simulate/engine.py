"""An engine that only keeps the time.  Obeys step messages as the real one does, and computes its next event.

From a boundary it takes all slices and steps up to the next event at once: the end of a chunk or of an answer, a bound
that it is given, or a time.  Pages are never short here: the ledger grants them before they are needed.
"""

from __future__ import annotations

from math import inf

from attrs import define, frozen

from strata.messages import ChunkRead, Close, Decoded, Row, Seq, Step, Took
from strata.scheduling.spans import ANY, Span, Steady
from strata.simulate.cost import CONTEXT_SPAN, CostModel, in_ticks
from strata.simulate.leap import Beside, Leap, beside, decode_alone, read_alone

Fact = Took | Span | ChunkRead | Decoded


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


@frozen
class Work:
    """What runs from a boundary on, until an event."""

    reader: Sequence | None
    decoders: tuple[Sequence, ...]
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
        reader, decoders = self._reader(), self._decoders()
        if reader is not None and not reader.total:
            self._begin_chunk(reader)
        self._work = self._plan(reader, decoders)
        self._share(reader is not None and bool(decoders))
        self.next_boundary = inf if self._work is None else self.now + self._first_s(self._work)

    def _share(self, both: bool) -> None:
        """Credit begins with what the step before earns, so that a reader that comes does not wait for another (R4)."""
        if not both or not self._shared:
            self._credit = self._earned(self._unread_step_s) if both and self._unread_step_s else 0.0
        self._shared = both

    def _earned(self, step_s: float) -> float:
        share = self._step.read_share
        return max(in_ticks(step_s * share / (1 - share)), in_ticks(self._step.gap_s))

    def _take(self, step: Step) -> None:
        """Bring it into force, unless its reader must wait for a workspace."""
        reader = self._named_reader(step)
        if reader is None or self._has_workspace(reader):
            self._step, self._waiting = step, None
            self._facts.append(Took(step.n))

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
        step = self._step
        named = step.decode if step.read is None or step.read in step.decode else (*step.decode, step.read)
        found = (self._sequences.get(seq) for seq in named)
        return tuple(one for one in found if one is not None and not one.unread)

    def _begin_chunk(self, reader: Sequence) -> None:
        tokens = self._chunk_end(reader) - reader.position
        reader.done, reader.total = 0, self._cost.slices(tokens)
        reader.slice_s = self._cost.slice_seconds(tokens, reader.position)

    def _chunk_end(self, reader: Sequence) -> int:
        chunk = self._chunk_tokens
        return min(reader.prompt, (reader.position // chunk + 1) * chunk)

    def _plan(self, reader: Sequence | None, decoders: tuple[Sequence, ...]) -> Work | None:
        if not decoders:
            return None if reader is None else Work(reader, ())
        spans, left = 0, 1 << 60
        for one in decoders:
            span, inside = divmod(one.prompt + one.written, CONTEXT_SPAN)
            spans += span
            left = min(left, one.answer - one.written, CONTEXT_SPAN - inside)
        step_s = self._cost.step_seconds(len(decoders), spans)
        gain = self._earned(step_s) if reader is not None else 0.0
        return Work(reader, decoders, step_s, left, gain)

    def _first_s(self, work: Work) -> float:
        """How long the first slice or step takes."""
        if work.reader is not None and (not work.decoders or self._credit > 0):
            return work.reader.slice_s
        return work.step_s

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, until: float, steady: Steady) -> list[Fact]:
        """The slice or step under way, and all after it that end by `until`, as far as `steady` and the work go.

        Up to the first end of a prompt or an answer, and of a chunk where that is something to decide about.  Not to
        be called before `next_boundary`.
        """
        chunks = steady.chunks
        while True:
            work = self._work
            assert work is not None, "an idle engine is woken, not run"
            # With a message to hear, only what is under way.
            leap = self._leap(work, self.next_boundary if self.must_hear else until, steady)
            reads = work.reader is not None and work.reader.position
            over = self._run_on(work, leap)
            if work.reader is not None and work.reader.position != reads:
                chunks -= 1
                self.ran_out = self.ran_out or chunks < 0
            # What was heard, or taken at last, was not known when it was said how far work may go on.
            self.ran_out = self.ran_out or (self._news and steady is not ANY)
            if over or self.ran_out or self.next_boundary > until:
                return self._take_facts()
            steady = _rest(steady, work, leap)

    def _run_on(self, work: Work, leap: Leap) -> bool:
        """One leap; whether it ended a prompt or an answer."""
        begun, self.now = self.now, self.now + leap.seconds
        if work.reader is not None:
            # Where nobody decodes this is forgotten at the next choice.
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
        reader = work.reader
        completes = False
        if reader is not None and leap.slices:
            reader.done += leap.slices
            completes = reader.done == reader.total
            self._half_read.pop(reader.seq, None)
            if not completes:
                self._half_read[reader.seq] = None
        ended = self._write(work.decoders, leap.steps)
        # A chunk's last slice is said by the chunk's end.
        said = leap.slices - completes
        if said or leap.steps:
            self._facts.append(_span(work, leap, begun, said, ended))
        if completes:
            assert reader is not None
            self._end_chunk(reader)
        return bool(ended) or (completes and reader is not None and not reader.unread)

    def _write(self, decoders: tuple[Sequence, ...], steps: int) -> tuple[Seq, ...]:
        """Who has written its last token by it."""
        if not steps:
            return ()
        ended = []
        for one in decoders:
            one.written += steps
            if one.written == one.answer:
                ended.append(one.seq)
                self._forget(one.seq)
        return tuple(ended)

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
        rows=tuple(one.seq for one in work.decoders) if leap.steps else (),
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
