"""The engine: follows the newest step message, one slice or one decode step at a time.

A room of its own because here messages become device work.  It decides nothing but how reading and decoding share the
time of one step.  Synchronous and without a thread: between two calls of `advance` nothing of it runs, so every
message finds it at a boundary.  Knows no actor, no client and no ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from strata.config import EngineSettings
from strata.engine.budget import Budget
from strata.engine.device_work import begin_chunk, drop_chunk, rehearse
from strata.engine.fingerprint import digests, engine_parts
from strata.engine.holdings import Pages, Usage, Workspaces
from strata.engine.moves import Moves
from strata.engine.sampling import Choice, check
from strata.engine.sequence import HalfChunk, Sequence, check_shared, check_tokens
from strata.engine.step import Credit, Steps, allowed
from strata.engine.trace import Trace
from strata.engine.window import compute, open_windows
from strata.errors import DeviceFault, SequenceFailed, StrataError, frames_of
from strata.messages import (
    PROTOCOL,
    ChunkRead,
    Close,
    Closed,
    Decoded,
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
from strata.models.architecture import Model

_log: Final = logging.getLogger(__name__)


class Engine:
    """Runs one model.  All memory that lasts is taken here, before the first message: pages, arena, workspaces, rows.

    What comes later is small: a sequence's own tokens, and what one call computes with and drops.

    An exception of the model's fails the sequence that it was raised for, and that one alone, but for a DeviceFault and
    a MemoryError: what was not there for one is not there for the next, and nobody knows what went without it.
    """

    def __init__(
        self,
        model: Model,
        settings: EngineSettings,
        budget: Budget,
        *,
        trace: Trace | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        model.allocate(budget.pages, budget.page_tokens, context=budget.context, rows=budget.rows, slots=budget.slots)
        self._model = model
        self._budget = budget
        self._chunk_tokens = settings.chunk_tokens
        self._speculate = settings.speculate
        self._trace = trace
        self._clock = clock
        self._end_ids = model.config.eos_ids
        self._pages = Pages(budget.pages)
        self._slots = Pages(budget.slots, "slot")
        self._moves = Moves(model, self._pages, self._slots, clock)
        self._workspaces = Workspaces(model.workspace(settings.chunk_tokens) for _ in range(settings.max_half_read))
        self._sequences: dict[Seq, Sequence] = {}
        self._half_read: dict[Seq, None] = {}
        """Those with a half-done chunk; the one whose slice ran last is the last."""
        self._steps = Steps()
        self._credit = Credit()
        self._facts: list[FromEngine] = []
        self.stopped = False
        """Whether it was told to stop, and has."""

    def __repr__(self) -> str:
        return f"<Engine {self._steps.current}, {len(self._sequences)} sequences, {self._pages}, {self._workspaces}>"

    # -- what the host calls ----------------------------------------------------------------------------------------

    def ready(self, incarnation: int) -> Ready:
        return Ready(
            incarnation=incarnation,
            protocol=PROTOCOL,
            pages=self._budget.pages,
            page_tokens=self._budget.page_tokens,
            context=self._budget.context,
            workspaces=self._workspaces.total,
            chunk_tokens=self._chunk_tokens,
            device=self._model.device,
            slots=self._budget.slots,
            page_bytes=self._model.bytes_per_page(self._budget.page_tokens),
        )

    def rehearse(self) -> None:
        """For a device that does a thing slowly the first time, to be called before anything is opened."""
        rehearse(self._model, self._workspaces)

    def handle(self, message: ToEngine) -> None:
        """Takes a message.  One to a sequence that has ended, or that was never opened, does nothing."""
        if self.stopped:
            return
        match message:
            case Step():
                self._steps.tell(message)
            case Open():
                self._open(message)
            case Grant():
                self._grant(message)
            case SwapOut() | SwapIn():
                self._ask_move(message)
            case Close():
                self._close(message.seq)
            case Stop():
                self._stop()

    def take_step(self) -> None:
        """Brings the newest step into force, unless its reader must wait for a workspace.

        Until then the step before it stands, and the chunk that was last run in is brought to its end.  `advance` does
        it first; apart from it, so that the step can be said to be in force before the work that may hang or kill.
        If all that have a half-done chunk are in the arena, waiting is of no use: the others run.  None does once the
        engine was stopped, which is its last word.
        """
        step = self._steps.waiting
        if step is None or self.stopped:
            return
        reader = self._named_reader(step)
        if reader is None or self._has_workspace(reader) or self._last_half_read() is None:
            self._steps.take()
            self._facts.append(Took(step.n))

    def advance(self) -> bool:
        """Moves one page, or runs one slice or one decode step; False: there is nothing that may and can run.

        Moves come first: somebody waits for them, and nobody runs whose pages are under way.  They are as many as the
        ledger asks for.
        """
        self.take_step()
        if self._moves:
            self._move_page()
            return True
        reader = self._reader()
        decoders = self._decoders()
        shared = reader is not None and bool(decoders)
        if shared:
            self._credit.share(self._in_force())
        if reader is not None and (not decoders or self._credit.allows_a_slice):
            self._run_slice(reader)
        elif decoders:
            self._run_decode(decoders)
        if not shared:
            self._credit.clear()
        return reader is not None or bool(decoders)

    def take_facts(self) -> list[FromEngine]:
        """What has come about since the last call, in order."""
        facts, self._facts = self._facts, []
        return facts

    def close(self) -> None:
        """Forgets all sequences, and ends what the model holds.  To be called on the thread that ran it."""
        self._forget_all()
        self._model.close()
        if self._trace is not None:
            self._trace.close()

    # -- looking in -------------------------------------------------------------------------------------------------

    @property
    def step_in_force(self) -> int | None:
        step = self._steps.current
        return None if step is None else step.n

    def usage(self) -> Usage:
        return Usage(
            sequences=len(self._sequences),
            pages=self._pages.held,
            half_chunks=len(self._half_read),
            workspaces_free=self._workspaces.free,
            slots=self._slots.held,
            moves=len(self._moves),
        )

    def fingerprint(self, seq: Seq) -> dict[str, str]:
        """A hash (hex) of each part of the sequence's state, by name.  Raises KeyError if there is no such sequence."""
        sequence = self._sequences[seq]
        return digests(engine_parts(sequence), self._model.state_parts(sequence, sequence.position))

    # -- messages ---------------------------------------------------------------------------------------------------

    def _open(self, message: Open) -> None:
        budget = self._budget
        sequence = Sequence(
            message, chunk_tokens=self._chunk_tokens, page_tokens=budget.page_tokens, speculate=self._speculate
        )
        if message.seq in self._sequences:
            self._fail(self._sequences[message.seq], SequenceFailed("it was opened twice"))
            return
        self._sequences[message.seq] = sequence
        try:
            check(message.sampling, self._model.config.vocab_size)
            check_tokens(
                message,
                vocab_size=self._model.config.vocab_size,
                context=budget.context,
                page_tokens=budget.page_tokens,
            )
            check_shared(message, self._holders(message.pages), budget.page_tokens)
            self._pages.share(message.seq, message.pages)
        except MemoryError:
            raise
        except Exception as error:
            self._fail(sequence, error)
        else:
            sequence.pages.extend(message.pages)

    def _holders(self, pages: tuple[int, ...]) -> Iterator[tuple[int, Sequence]]:
        """Who holds each of them, by its place."""
        for place, page in enumerate(pages):
            for seq in self._pages.holders(page):
                yield place, self._sequences[seq]

    def _grant(self, message: Grant) -> None:
        sequence = self._sequences.get(message.seq)
        if sequence is None:
            return
        try:
            self._pages.give(message.seq, message.pages)
        except SequenceFailed as error:
            self._fail(sequence, error)
        else:
            sequence.pages.extend(message.pages)
            sequence.said_wants = False

    def _ask_move(self, message: SwapOut | SwapIn) -> None:
        sequence = self._sequences.get(message.seq)
        if sequence is None:
            return
        try:
            self._moves.ask(sequence, message)
        except SequenceFailed as error:
            self._fail(sequence, error)

    def _close(self, seq: Seq) -> None:
        if seq in self._sequences:
            self._forget(self._sequences[seq])
            self._facts.append(Closed(seq))

    def _stop(self) -> None:
        self._forget_all()
        self._facts.append(Stopped())
        self.stopped = True

    # -- whose turn it is -------------------------------------------------------------------------------------------

    def _reader(self) -> Sequence | None:
        """Whose slice is next, if one is."""
        if self._steps.waiting is not None:
            return self._last_half_read()
        step = self._steps.current
        reader = None if step is None else self._named_reader(step)
        if reader is None or not self._has_pages(reader):
            return None
        return reader if self._has_workspace(reader) else self._last_half_read()

    def _named_reader(self, step: Step) -> Sequence | None:
        """The sequence that the step lets read, if some of what it may read is unread."""
        reader = None if step.read is None else self._sequences.get(step.read)
        if reader is None or not reader.unread:
            return None
        return reader if step.read_until is None or reader.position < step.read_until else None

    def _has_workspace(self, reader: Sequence) -> bool:
        return reader.chunk is not None or self._workspaces.free > 0

    def _last_half_read(self) -> Sequence | None:
        # A chunk begins only with all of its pages, so one that has them here can be brought to its end.
        half_read = (self._sequences[seq] for seq in reversed(self._half_read))
        return next((sequence for sequence in half_read if sequence.on_device), None)

    def _decoders(self) -> list[Sequence]:
        step = self._steps.current
        if step is None:
            return []
        named = [self._sequences[seq] for seq in allowed(step) if seq in self._sequences]
        return [sequence for sequence in named if not sequence.unread and self._has_pages(sequence)]

    def _has_pages(self, sequence: Sequence) -> bool:
        """Whether what comes next has room; if not, that is said, once.  One whose pages are away just waits."""
        if not sequence.on_device:
            return False
        if sequence.has_pages():
            return True
        if not sequence.said_wants:
            sequence.said_wants = True
            self._facts.append(Wants(sequence.seq))
        return False

    # -- moving -----------------------------------------------------------------------------------------------------

    def _move_page(self) -> None:
        sequence = self._moves.first
        try:
            moved = self._moves.run_one()
        except (DeviceFault, MemoryError):
            raise
        except Exception as error:
            self._fail(sequence, error)
        else:
            self._facts += [] if moved is None else [moved]

    # -- reading ----------------------------------------------------------------------------------------------------

    def _run_slice(self, sequence: Sequence) -> None:
        started = self._clock()
        try:
            chunk = sequence.chunk or begin_chunk(self._model, self._workspaces, sequence)
            logits = chunk.run_slice()
            choice = None
            if logits is not None and chunk.end == len(sequence.prompt) and not sequence.written:
                choice = sequence.next_token(logits, self._end_ids)
        except (DeviceFault, MemoryError):
            raise
        except Exception as error:
            self._fail(sequence, error)
            return
        seconds = self._clock() - started
        self._credit.read(seconds)
        self._half_read.pop(sequence.seq, None)
        if logits is None:
            self._half_read[sequence.seq] = None
            self._facts.append(Progress(sequence.seq, chunk.index, chunk.done, chunk.total, seconds))
        else:
            drop_chunk(self._workspaces, sequence)
            sequence.reach(chunk.end)
            self._facts.append(ChunkRead(sequence.seq, chunk.end, seconds))
        row = None if choice is None else self._write(sequence, choice)
        self._trace_slice(sequence, chunk)
        if row is not None:
            self._publish([row], seconds=0.0)

    # -- decoding ---------------------------------------------------------------------------------------------------

    def _run_decode(self, sequences: list[Sequence]) -> None:
        """One step, published whole: nothing of any sequence changes before all rows are computed and chosen."""
        budget, started = self._budget, self._clock()
        windows = open_windows(sequences, rows=budget.rows, context=budget.context)
        outcomes = list(compute(self._model, windows, self._end_ids, budget.context))
        seconds = self._clock() - started
        self._credit.decoded(seconds, self._in_force())
        rows: list[Row] = []
        again: list[Seq] = []
        accepted = 0
        for window, outcome in zip(windows, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._fail(window.sequence, outcome)
                continue
            accepted += window.settle(outcome, self._trace)
            rows += self._write_all(window.sequence, outcome)
            again += [] if outcome else [window.sequence.seq]
        if rows or again:
            drafted = sum(len(window.offered) for window in windows)
            self._publish(rows, seconds, again, drafted=drafted, accepted=accepted)

    def _write_all(self, sequence: Sequence, choices: list[Choice]) -> list[Row]:
        """A position on for each token, or for the one that was written before."""
        rows: list[Row] = []
        for at in range(max(1, len(choices))):
            sequence.reach(sequence.position + 1)
            rows += [self._write(sequence, choice) for choice in choices[at : at + 1]]
            self._trace_decode(sequence)
        return rows

    def _write(self, sequence: Sequence, choice: Choice) -> Row:
        return sequence.write(choice, self._end_ids, self._budget.context)

    def _publish(
        self, rows: list[Row], seconds: float, again: Iterable[Seq] = (), *, drafted: int = 0, accepted: int = 0
    ) -> None:
        """Says the rows; who has written its last token is forgotten."""
        self._facts.append(Decoded(self._in_force().n, tuple(rows), seconds, tuple(again), drafted, accepted))
        for row in rows:
            if row.ended is not None:
                self._forget(self._sequences[row.seq])

    def _in_force(self) -> Step:
        step = self._steps.current
        assert step is not None, "device work without a step in force"
        return step

    # -- ends -------------------------------------------------------------------------------------------------------

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """This sequence alone; what the model or we ourselves did not raise on purpose is logged."""
        if isinstance(error, StrataError):
            text = str(error)
        else:
            text = f"the engine could not go on with it ({type(error).__name__}: {error})"
            _log.error("sequence %s failed: %s", sequence.seq, frames_of(error))
        self._forget(sequence)
        self._facts.append(SeqFailed(sequence.seq, text))

    def _forget(self, sequence: Sequence) -> None:
        """Nothing of it stays: not its half-done chunk, its workspace, its pages, or a move of them."""
        del self._sequences[sequence.seq]
        self._half_read.pop(sequence.seq, None)
        drop_chunk(self._workspaces, sequence)
        self._moves.forget(sequence)

    def _forget_all(self) -> None:
        for sequence in list(self._sequences.values()):
            self._forget(sequence)

    # -- trace ------------------------------------------------------------------------------------------------------

    def _trace_slice(self, sequence: Sequence, chunk: HalfChunk) -> None:
        if self._trace is not None:
            self._trace.slice(
                sequence.seq,
                position=sequence.position,
                chunk=chunk.index,
                done=chunk.done,
                token=None if sequence.unread else sequence.repeated[0],
                state=self.fingerprint(sequence.seq),
            )

    def _trace_decode(self, sequence: Sequence) -> None:
        if self._trace is not None:
            token = sequence.repeated[-1]
            state = self.fingerprint(sequence.seq)
            self._trace.decode(sequence.seq, position=sequence.position, token=token, state=state)
