"""An engine without a model: the whole protocol, in virtual time.  Knows what an engine does, and computes nothing.

It obeys step messages, grid, grants, workspaces and the credit of reading exactly as the real engine does, and runs
the same protocol tests, so that what is built on it holds on the real one.  Its slices and steps take `trio.sleep`:
under a `MockClock` with autojump a minute of engine passes in a moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import trio
from attrs import define, frozen

from strata.actors.kernel import Mailbox
from strata.engine.step import Credit, Steps, allowed
from strata.messages import (
    PROTOCOL,
    ChunkRead,
    Close,
    Closed,
    Decoded,
    EngineDied,
    FromEngine,
    Grant,
    Open,
    Progress,
    Ready,
    Row,
    Seq,
    SeqFailed,
    Step,
    Stop,
    Stopped,
    SwapIn,
    SwapOut,
    ToEngine,
    Took,
    Wants,
)
from strata.testing.language import ByteTokenizer, PlainTemplate
from strata.testing.script import Fault, RowFault, Script
from strata.testing.sequences import Move, ScriptedSequence, Sequences


@frozen
class Ran:
    """One slice, one decode step or one page's move that was completed, for a test to look at."""

    kind: Literal["slice", "step", "page"]
    seqs: tuple[Seq, ...]
    """Whose slice or page it was, or whose rows."""
    n: int | None
    """The step message that was in force."""
    at: float
    """When it began (Trio's seconds)."""
    seconds: float


class _Died(Exception):
    """The engine says its last words."""


class _Vanished(Exception):
    """The engine says nothing more."""


@define(eq=False, kw_only=True, repr=False, slots=False)
class ScriptedEngine:
    """An engine host for tests; give it to `open_runtime(host=...)`.

    `slice_s`, `step_s`, `row_s`, `page_s` may be changed at any time.  `log` says what ran, `told` what it was told.
    `run` raises ProtocolError when it is told what no right dispatcher says.
    """

    ends_at_once = True

    _script: Script | None = None
    _faults: Iterable[Fault | RowFault] = ()
    _pages: int = 64
    _page_tokens: int = 64
    _context: int | None = None
    """Tokens; None: what the pages hold."""
    _chunk_tokens: int = 512
    _workspaces: int = 2
    _slices_per_chunk: int = 8
    """Of a whole one."""
    slice_s: float = 0.01
    step_s: float = 0.01
    row_s: float = 0.0
    """What each row adds to a step."""
    _slots: int = 0
    """Of the arena."""
    _page_bytes: int = 0
    """What it says of a page's size."""
    page_s: float = 0.001
    """For each page that is moved."""
    _start_s: float = 0.0
    """How long it takes to be ready."""
    _incarnation: int = 1
    _strict: bool = True
    """False ignores what names a sequence that was never opened, as a real engine does."""

    def __attrs_post_init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.template = PlainTemplate()
        self.log: list[Ran] = []
        self.told: list[ToEngine] = []
        self._answer = (self._script or Script()).answer
        self._inbox: Mailbox[ToEngine | Fault | RowFault] = Mailbox()
        self._expected: list[Fault] = []
        self._row_faults: dict[tuple[int, int], RowFault] = {}
        self._ready = self._what_it_is()
        self._sequences = Sequences(self._ready, strict=self._strict)
        self._steps = Steps()
        self._credit = Credit()
        self._shared = False
        """Whether what runs now reads beside decoders."""
        self._last_read: dict[Seq, None] = {}
        """Those with a half-done chunk; whose slice ran last is the last."""
        self._stopped = False
        self._counts = Counter[str]()
        for fault in self._faults:
            self._expect(fault)

    def _what_it_is(self) -> Ready:
        return Ready(
            incarnation=self._incarnation,
            protocol=PROTOCOL,
            pages=self._pages,
            page_tokens=self._page_tokens,
            context=self._context or self._pages * self._page_tokens,
            workspaces=self._workspaces,
            chunk_tokens=self._chunk_tokens,
            device="scripted",
            slots=self._slots,
            page_bytes=self._page_bytes,
        )

    def __repr__(self) -> str:
        return f"<ScriptedEngine {self._sequences}, {len(self.log)} slices and steps run>"

    # -- the face of a host -----------------------------------------------------------------------------------------

    def tell(self, message: ToEngine) -> None:
        """Never blocks.  It is heard at the next boundary: the end of the slice or step that is under way."""
        self.told.append(message)
        self._inbox.tell(message)

    async def run(
        self,
        deliver: Callable[[FromEngine], None],
        *,
        task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Until it was told to stop, or a fault ends it.  Raises ProtocolError.  Once for each object."""
        self._deliver = deliver
        try:
            await trio.sleep(self._start_s)
            task_status.started(self._ready)
            await self._serve()
        except _Died as died:
            in_force = self._steps.current
            deliver(EngineDied(str(died), None if in_force is None else in_force.n))
            await trio.lowlevel.checkpoint()
        except _Vanished:
            await trio.lowlevel.checkpoint()
        finally:
            self._inbox.close()

    # -- what a test may do and see ---------------------------------------------------------------------------------

    def fail(self, fault: Fault | RowFault) -> None:
        """Let this go wrong.  A Fault that names neither slice nor step comes at the next boundary."""
        self._inbox.tell(fault)

    @property
    def held_pages(self) -> int:
        return self._sequences.held_pages

    @property
    def held_slots(self) -> int:
        return self._sequences.held_slots

    @property
    def open_sequences(self) -> int:
        return len(self._sequences)

    @property
    def half_read(self) -> int:
        """Workspaces in use."""
        return len(self._last_read)

    def ran(self, kind: Literal["slice", "step", "page"], seq: int | None = None) -> int:
        """How many slices, steps or pages were completed: all, or those of one sequence."""
        if seq is None:
            return self._counts[kind]
        return sum(ran.kind == kind and seq in ran.seqs for ran in self.log)

    # -- what it is told --------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Between facts and the slice after them nobody else runs, so what is answered to a fact comes a slice later.

        So it is with a real engine, which does not wait for an answer; and so a virtual run is the same each time.
        """
        while True:
            while self._inbox.depth:
                self._handle(self._inbox.take_nowait())
            if self._stopped:
                await trio.lowlevel.checkpoint()
                return
            work = self._next()
            if fault := self._due(work):
                await self._suffer(fault)
            elif isinstance(work, ScriptedSequence):
                await self._run_slice(work)
            elif isinstance(work, Move):
                await self._move_page(work)
            elif work:
                await self._run_step(work)
            else:
                self._handle(await self._inbox.receive())
            if not self._shared and not isinstance(work, Move):
                self._credit.clear()

    def _handle(self, message: ToEngine | Fault | RowFault) -> None:
        if self._stopped:
            return
        match message:
            case Step():
                self._take_step(message)
            case Open():
                self._sequences.open(message, self._answer(message))
            case Grant():
                self._sequences.grant(message)
            case SwapOut() | SwapIn():
                self._sequences.ask_move(message)
            case Close():
                self._close(message.seq)
            case Stop():
                self._stop()
            case Fault() | RowFault():
                self._expect(message)

    def _take_step(self, step: Step) -> None:
        for seq in allowed(step):
            self._sequences.get(seq)
        self._steps.tell(step)

    def _close(self, seq: Seq) -> None:
        if self._forget(seq):
            self._deliver(Closed(seq))

    def _forget(self, seq: Seq) -> bool:
        self._last_read.pop(seq, None)
        return self._sequences.forget(seq)

    def _stop(self) -> None:
        self._stopped = True
        self._deliver(Stopped())

    # -- whose turn it is -------------------------------------------------------------------------------------------

    def _next(self) -> ScriptedSequence | Move | list[ScriptedSequence]:
        """Whose slice, whose page, or whose decode step; an empty list when there is nothing that may and can run."""
        self._bring_step_into_force()
        if self._sequences.moves:
            return self._sequences.moves[0]
        reader, decoders = self._reader(), self._decoders()
        self._shared = reader is not None and bool(decoders)
        if self._shared and self._steps.current is not None:
            self._credit.share(self._steps.current)
        if reader is not None and (not decoders or self._credit.allows_a_slice):
            return reader
        return decoders

    def _bring_step_into_force(self) -> None:
        step = self._steps.waiting
        if step is None:
            return
        if self._has_workspace(self._named_reader(step)) or self._last_half_read() is None:
            self._steps.take()
            self._deliver(Took(step.n))

    def _reader(self) -> ScriptedSequence | None:
        if self._steps.waiting is not None:
            return self._last_half_read()
        reader = None if self._steps.current is None else self._named_reader(self._steps.current)
        if reader is None or not self._has_pages(reader):
            return None
        return reader if self._has_workspace(reader) else self._last_half_read()

    def _named_reader(self, step: Step) -> ScriptedSequence | None:
        """The one that the step lets read, if some of what it may read is unread."""
        reader = None if step.read is None else self._sequences.get(step.read)
        if reader is None or not reader.unread:
            return None
        return reader if step.read_until is None or reader.position < step.read_until else None

    def _has_workspace(self, reader: ScriptedSequence | None) -> bool:
        return reader is None or reader.chunk is not None or len(self._last_read) < self._ready.workspaces

    def _last_half_read(self) -> ScriptedSequence | None:
        half_read = map(self._sequences.get, reversed(self._last_read))
        return next((one for one in half_read if one is not None and one.on_device), None)

    def _decoders(self) -> list[ScriptedSequence]:
        step = self._steps.current
        named = [] if step is None else [self._sequences.get(seq) for seq in allowed(step)]
        return [one for one in named if one is not None and not one.unread and self._has_pages(one)]

    def _has_pages(self, sequence: ScriptedSequence) -> bool:
        """Whether what comes next has room; if not, that is said, once for each grant.  Who is away just waits."""
        if not sequence.on_device:
            return False
        enough = sequence.has_pages()
        if not enough and not sequence.said_wants:
            sequence.said_wants = True
            self._deliver(Wants(sequence.seq))
        return enough

    # -- running ----------------------------------------------------------------------------------------------------

    async def _move_page(self, move: Move) -> None:
        pages = len(move.asked.pages)
        move.seconds += await self._spend("page", [move.sequence], self.page_s if pages else 0.0)
        move.done += 1
        if move.done >= pages:
            self._deliver(self._sequences.end_move())

    async def _run_slice(self, sequence: ScriptedSequence) -> None:
        chunk = sequence.chunk or sequence.begin_chunk(self._slices_per_chunk)
        self._last_read.pop(sequence.seq, None)
        self._last_read[sequence.seq] = None
        seconds = await self._spend("slice", [sequence], self.slice_s)
        self._credit.read(seconds)
        chunk.done += 1
        if chunk.done < chunk.total:
            self._deliver(Progress(sequence.seq, chunk.index, chunk.done, chunk.total, seconds))
        else:
            self._end_chunk(sequence, chunk.end, seconds)

    def _end_chunk(self, sequence: ScriptedSequence, end: int, seconds: float) -> None:
        sequence.chunk = None
        del self._last_read[sequence.seq]
        self._sequences.read(sequence, end)
        self._deliver(ChunkRead(sequence.seq, end, seconds))
        if not sequence.unread and not sequence.opened.written:
            self._publish([sequence], 0.0)

    async def _run_step(self, sequences: list[ScriptedSequence]) -> None:
        step = self._steps.current
        assert step is not None
        seconds = await self._spend("step", sequences, self.step_s + self.row_s * len(sequences))
        self._credit.decoded(seconds, step)
        again = [sequence for sequence in sequences if sequence.repeats]
        for sequence in sequences:
            sequence.position += 1
        self._publish([one for one in sequences if one not in again], seconds, tuple(one.seq for one in again))

    def _publish(self, sequences: Sequence[ScriptedSequence], seconds: float, again: tuple[Seq, ...] = ()) -> None:
        """The next token of each; who fails, or ends, is closed."""
        step = self._steps.current
        assert step is not None
        rows: list[Row] = []
        for sequence in sequences:
            fault = self._row_faults.pop((sequence.seq, sequence.written), None)
            if fault is None:
                rows.append(sequence.write())
            else:
                self._forget(sequence.seq)
                self._deliver(SeqFailed(sequence.seq, fault.error))
        for row in rows:
            if row.ended:
                self._forget(row.seq)
        if rows or again:
            self._deliver(Decoded(step.n, tuple(rows), seconds, again))

    async def _spend(
        self, kind: Literal["slice", "step", "page"], sequences: list[ScriptedSequence], wanted: float
    ) -> float:
        """Let a slice, a step or a page take its time (seconds), and give the time that it took."""
        started = trio.current_time()
        await trio.sleep(wanted)
        seconds = trio.current_time() - started
        step = self._steps.current
        seqs = tuple(sequence.seq for sequence in sequences)
        self._counts[kind] += 1
        self.log.append(Ran(kind, seqs, None if step is None else step.n, started, seconds))
        return seconds

    # -- going wrong ------------------------------------------------------------------------------------------------

    def _expect(self, fault: Fault | RowFault) -> None:
        if isinstance(fault, RowFault):
            self._row_faults[fault.seq, fault.index] = fault
        else:
            self._expected.append(fault)

    def _due(self, work: ScriptedSequence | Move | list[ScriptedSequence]) -> Fault | None:
        """What goes wrong in the place of this slice or step."""
        nth_slice = self._counts["slice"] + 1 if isinstance(work, ScriptedSequence) else None
        nth_step = self._counts["step"] + 1 if isinstance(work, list) and work else None
        return next((fault for fault in self._expected if fault.is_due(nth_slice, nth_step)), None)

    async def _suffer(self, fault: Fault) -> None:
        await trio.lowlevel.checkpoint()
        match fault.does:
            case "die":
                raise _Died(fault.reason)
            case "vanish":
                raise _Vanished
            case "raise":
                raise RuntimeError(fault.reason)
            case "hang":
                await trio.sleep_forever()
