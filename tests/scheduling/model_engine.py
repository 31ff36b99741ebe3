"""A small honest engine.  For the tests of this room only; who stands between it and the scheduler is in `desk`.

The engine obeys the messages of `strata.messages` with made-up work in made-up time, and finds fault with any that
break the protocol.  Messages cross: it can be deaf for a few boundaries, and what it says lies in `facts` until the
desk hears it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from attrs import define, field, frozen

from strata.engine.drive import HELD_S, Heartbeats
from strata.messages import (
    ChunkRead,
    Close,
    Decoded,
    FromEngine,
    Grant,
    Open,
    Progress,
    Row,
    Seq,
    SeqFailed,
    Step,
    SwapIn,
    SwapOut,
    SwappedIn,
    SwappedOut,
    ToEngine,
    Took,
    Wants,
)
from strata.scheduling.prefix import chain

Content = bytes | tuple[Seq, int]
"""The name of what was read to a page, else whose it is and at which place."""


@frozen(kw_only=True)
class Work:
    """What the engine's work costs (seconds), and how it is cut."""

    chunk_tokens: int = 64
    page_tokens: int = 16
    slices: int = 4
    """Of each chunk."""
    token_s: float = 0.001
    """To read one token."""
    step_s: float = 0.02
    """Of each decode step."""
    move_s: float = 0.001
    """To move a page."""
    workspaces: int = 2

    def slice_s(self, tokens: int) -> float:
        return tokens * self.token_s / self.slices

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def read_s(self, prompt: int) -> float:
        return prompt * self.token_s

    def alone_s(self, prompt: int, written: int) -> float:
        """Engine time of a whole request; the first token comes with the prompt's last chunk."""
        return self.read_s(prompt) + (written - 1) * self.step_s


@define(eq=False)
class Sequence:
    seq: Seq
    prompt: int
    max_tokens: int
    answer: int
    names: tuple[bytes, ...]
    """Of what the prompt's pages hold."""
    pages: list[int] = field(factory=list)
    """One that lies in slot n of the arena is -1 - n."""
    position: int = 0
    done: int = 0
    written: int = 0
    again: int = 0
    """Steps until it stands at the last of what was written before."""
    ran: int = 0
    """Slices and steps since a step let it run."""
    wanted: bool = False

    @property
    def unread(self) -> bool:
        return self.position < self.prompt

    @property
    def stands_at(self) -> int:
        """With the token that the next step takes in."""
        return self.prompt + self.written - self.again


class Died(Exception):
    """The engine, of a sequence's work."""


class ModelEngine:
    """Reads, decodes and answers as an engine must, one slice or step at each `advance`."""

    def __init__(
        self, work: Work, *, pages: int, slots: int = 0, finishes_chunks: bool = False, held_s: float = 0.0
    ) -> None:
        self.work = work
        self.held_s = held_s
        """How long heartbeats wait for what comes after them (seconds); 0: none waits."""
        self._new: list[FromEngine] = []
        self._heartbeats = Heartbeats(self._say, self._clock)
        self.finishes_chunks = finishes_chunks
        """Whether a half-done chunk is finished though `read_until` lies before it; engines may do either."""
        self.total_pages = pages
        self.total_slots = slots
        self.moves: deque[SwapOut | SwapIn] = deque()
        self.moved = 0
        """Pages, since a slice or a step ran, or nobody could: so many hold up those that can."""
        self.now = 0.0
        self.deaf = 0
        self.inbox: deque[ToEngine] = deque()
        self.facts: deque[FromEngine] = deque()
        self.sequences: dict[Seq, Sequence] = {}
        self.answers: dict[Seq, int] = {}
        """How long each answer would be by itself (tokens)."""
        self.step = Step(0)
        self.parked_in_chunk: list[Seq] = []
        """Those that a step took off in the middle of a chunk."""
        self.busy_s = 0.0
        self.ran = 0
        """Slices, steps and pages moved."""
        self.poison: dict[Seq, tuple[int, int]] = {}
        """Sequences that kill it, from so many tokens written and read on."""
        self._next: Step | None = None
        self._holders: dict[int, set[Seq]] = {}
        self._slots: dict[int, Seq] = {}
        self._holds: dict[int, Content] = {}
        """What lies in each page, or slot n as -1 - n."""
        self._credit = 0.0
        self._shared = False
        self._unread_step_s = 0.0
        self._last_reader: Seq | None = None
        self._pages_moved = 0
        """Of the first move."""

    def tell(self, message: ToEngine) -> None:
        self.inbox.append(message)

    def advance(self) -> bool:
        """One slice or one decode step; False if there is nothing to do."""
        if self.deaf > 0:
            self.deaf -= 1
        else:
            self._listen()
        busy = self._work()
        if not busy:
            self.deaf = 0
            self._listen()
            busy = self._work()
        self._tell_what_is_new()
        if not busy:
            self._heartbeats.flush()
        return busy

    def fail(self, seq: Seq) -> bool:
        if seq not in self.sequences:
            return False
        self._forget(seq)
        self._new.append(SeqFailed(seq, "overflow"))
        self._tell_what_is_new()
        return True

    def _tell_what_is_new(self) -> None:
        new, self._new = self._new, []
        if new:
            self._heartbeats.add(new)
        if not self.held_s:
            self._heartbeats.flush()

    def _say(self, facts: Iterable[FromEngine]) -> None:
        self.facts += facts

    def _clock(self) -> float:
        """By which what waits for `held_s` waits for `HELD_S`."""
        return self.now * HELD_S / (self.held_s or HELD_S)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while self.inbox:
            match self.inbox.popleft():
                case Open() as message:
                    self._open(message)
                case Grant(seq, pages):
                    self._grant(seq, pages)
                case Close(seq):
                    self._forget(seq)
                case SwapOut() | SwapIn() as move:
                    self._ask(move)
                case Step() as step:
                    assert step.n > (self._next or self.step).n, "steps are numbered upwards"
                    self._next = step
                case other:
                    raise AssertionError(f"{other} is not for this engine")
        if self._next is not None and self._unfinished() is None:
            self._take(self._next)

    def _open(self, opened: Open) -> None:
        seq, tokens, pages, written = opened.seq, opened.tokens, opened.pages, opened.written
        assert seq not in self.sequences, "opened twice"
        assert opened.known == len(pages) * self.work.page_tokens < len(tokens), "some of the prompt is always read"
        assert written == tuple(range(1, len(written) + 1)), "not what was written"
        names = chain(tokens, self.work.page_tokens)
        assert tuple(self._holds.get(page) for page in pages) == names[: len(pages)], "a page holds something else"
        for page in pages:
            self._holders.setdefault(page, set()).add(seq)
        sequence = self.sequences[seq] = Sequence(
            seq, len(tokens), opened.sampling.max_tokens, self.answers[seq], names, list(pages), opened.known
        )
        sequence.written, sequence.again = len(written), max(0, len(written) - 1)

    def _grant(self, seq: Seq, pages: tuple[int, ...]) -> None:
        sequence = self.sequences.get(seq)
        if sequence is None:
            return
        for page in pages:
            assert 0 <= page < self.total_pages, "there is no such page"
            assert page not in self._holders, f"page {page} belongs to {self._holders[page]}"
            self._holders[page] = {seq}
            self._holds[page] = (seq, len(sequence.pages))
            sequence.pages.append(page)
        sequence.wanted = False

    def _forget(self, seq: Seq) -> None:
        sequence = self.sequences.pop(seq, None)
        for page in sequence.pages if sequence is not None else ():
            self._let_go(seq, page)
        for move in [move for move in self.moves if move.seq == seq]:
            self._pages_moved = 0 if move is self.moves[0] else self._pages_moved
            self.moves.remove(move)
            for page, slot in zip(move.pages, move.slots, strict=True):
                self._let_go(seq, -1 - slot if isinstance(move, SwapOut) else page)

    def _let_go(self, seq: Seq, page: int) -> None:
        if page < 0:
            assert self._slots.pop(-1 - page) == seq
            return
        self._holders[page].remove(seq)
        if not self._holders[page]:
            del self._holders[page]

    def _ask(self, move: SwapOut | SwapIn) -> None:
        sequence = self.sequences.get(move.seq)
        if sequence is None:
            return
        assert len(set(move.pages)) == len(set(move.slots)) == len(move.pages) == len(move.slots) > 0
        moving = {page for other in self.moves for page in (*other.pages, *(-1 - slot for slot in other.slots))}
        slots = [-1 - slot for slot in move.slots]
        sources = move.pages if isinstance(move, SwapOut) else slots
        assert set(sources) <= set(sequence.pages) - moving, "only what it has is moved, and once"
        if isinstance(move, SwapOut):
            assert move.seq not in _allowed(self.step) | _allowed(self._next or self.step), "who runs keeps its pages"
            assert all(self._holders[page] == {move.seq} for page in move.pages), "what others hold too stays"
            assert not sequence.done, "a half-done chunk can be finished, for its workspace"
            assert not set(move.slots) & set(self._slots)
            assert max(move.slots) < self.total_slots
            self._slots |= dict.fromkeys(move.slots, move.seq)
        else:
            assert not set(move.pages) & set(self._holders)
            self._holders |= {page: {move.seq} for page in move.pages}
        self.moves.append(move)

    def _move(self) -> None:
        """The next page of the first move; the fact, if it was the last one of it."""
        move = self.moves[0]
        may_run = [self.sequences[seq] for seq in _allowed(self.step) if seq in self.sequences]
        # As far as it has heard all that it was told.
        if not self.inbox:
            self.moved = self.moved + 1 if any(self._can_run(sequence) for sequence in may_run) else 0
        self.now += self.work.move_s
        self._pages_moved += 1
        self.ran += 1
        if self._pages_moved < len(move.pages):
            return
        self._pages_moved = 0
        self.moves.popleft()
        sequence, seconds = self.sequences[move.seq], self.work.move_s * len(move.pages)
        for page, slot in zip(move.pages, move.slots, strict=True):
            before, after = (page, -1 - slot) if isinstance(move, SwapOut) else (-1 - slot, page)
            sequence.pages[sequence.pages.index(before)] = after
            self._holds[after] = self._holds[before]
            self._let_go(move.seq, before)
        if isinstance(move, SwapOut):
            self._new.append(SwappedOut(move.seq, move.pages, move.slots, seconds))
        else:
            self._new.append(SwappedIn(move.seq, move.slots, move.pages, seconds))

    def _unfinished(self) -> Sequence | None:
        """Whose half-done chunk must be finished first, for the workspace that the next step's reader needs."""
        assert self._next is not None
        reader = self.sequences.get(self._next.read) if self._next.read is not None else None
        if reader is None or not reader.unread or reader.done:
            return None
        half_read = [s for s in self.sequences.values() if s.done]
        if len(half_read) < self.work.workspaces:
            return None
        return next((s for s in half_read if s.seq == self._last_reader), half_read[-1])

    def _take(self, step: Step) -> None:
        allowed, before = _allowed(step), _allowed(self.step)
        for seq in before - allowed:
            if (sequence := self.sequences.get(seq)) is not None:
                assert sequence.ran or not self._can_run(sequence), f"sequence {seq} ran for less than a slice"
                if sequence.done:
                    self.parked_in_chunk.append(seq)
        for seq in allowed - before:
            if seq in self.sequences:
                self.sequences[seq].ran = 0
        self.step, self._next = step, None
        if step.read is not None:
            self._last_reader = step.read
        self._new.append(Took(step.n))

    # -- work ---------------------------------------------------------------------------------------------------------

    def _work(self) -> bool:
        if self.moves:
            self._move()
            return True
        answers = [s for s in self._allowed() if not s.unread and self._has(s, s.stands_at)]
        reader = (None if self._next is None else self._unfinished()) or self._reader()
        if reader is None or not answers:
            self._credit, self._shared = 0.0, False
        elif not self._shared:
            self._credit, self._shared = self._earned(self._unread_step_s), True
        if reader is not None and (not answers or self._credit > 0):
            seconds = self._read(reader)
            self._credit -= seconds if answers else 0.0
            self._unread_step_s = 0.0
        elif answers:
            self._decode(answers)
        else:
            return False
        return True

    def _allowed(self) -> list[Sequence]:
        return [self.sequences[seq] for seq in sorted(_allowed(self.step)) if seq in self.sequences]

    def _reader(self) -> Sequence | None:
        reader = self.sequences.get(self.step.read) if self.step.read is not None else None
        if reader is None or not reader.unread:
            return None
        until = self.step.read_until
        if until is not None and reader.position >= until and not (reader.done and self.finishes_chunks):
            return None
        return reader if self._has(reader, self._chunk_end(reader)) else None

    def _chunk_end(self, sequence: Sequence) -> int:
        chunk = self.work.chunk_tokens
        return min(sequence.prompt, (sequence.position // chunk + 1) * chunk)

    def _can_run(self, sequence: Sequence) -> bool:
        end = self._chunk_end(sequence) if sequence.unread else sequence.stands_at
        return min(sequence.pages, default=0) >= 0 and self._fills(sequence, end)

    def _fills(self, sequence: Sequence, tokens: int) -> bool:
        return len(sequence.pages) * self.work.page_tokens >= tokens

    def _has(self, sequence: Sequence, tokens: int) -> bool:
        """Whether its pages hold so many tokens; it says so once if they don't."""
        for place, page in enumerate(sequence.pages):
            assert page >= 0, f"sequence {sequence.seq} runs while a page of it is in the arena"
            names = sequence.names[place : place + 1]
            assert self._holds[page] in ((sequence.seq, place), *names), "a page holds something else"
        if self._fills(sequence, tokens):
            return True
        if not sequence.wanted:
            sequence.wanted = True
            self._new.append(Wants(sequence.seq))
        return False

    def _spend(self, seconds: float) -> None:
        self.moved = 0
        self.ran += 1
        self.now += seconds
        self.busy_s += seconds

    def _may_die_of(self, sequence: Sequence) -> None:
        if self.poison.get(sequence.seq, (1 << 30, 0)) <= (sequence.written - sequence.again, sequence.position):
            raise Died

    def _read(self, sequence: Sequence) -> float:
        self._may_die_of(sequence)
        end = self._chunk_end(sequence)
        assert len(sequence.pages) * self.work.page_tokens >= end, "a chunk is written to pages that it has"
        seconds = self.work.slice_s(end - sequence.position)
        self._spend(seconds)
        sequence.done += 1
        sequence.ran += 1
        if sequence.done < self.work.slices:
            chunk = sequence.position // self.work.chunk_tokens
            self._new.append(Progress(sequence.seq, chunk, sequence.done, self.work.slices, seconds))
            return seconds
        self._fill(sequence, end)
        sequence.position, sequence.done = end, 0
        self._new.append(ChunkRead(sequence.seq, end, seconds))
        if not sequence.unread and not sequence.written:
            self._new.append(Decoded(self.step.n, (self._row(sequence),), 0.0))
        return seconds

    def _fill(self, sequence: Sequence, end: int) -> None:
        """What its pages hold, once it has read to this position."""
        for place in range(sequence.position // self.work.page_tokens, self.work.pages_for(end)):
            page = sequence.pages[place]
            assert self._holders[page] == {sequence.seq}, "a shared page is not written"
            if place < end // self.work.page_tokens:
                self._holds[page] = sequence.names[place]

    def _decode(self, answers: list[Sequence]) -> None:
        seconds = self.work.step_s
        self._spend(seconds)
        self._credit = min(self._credit, 0.0) + self._earned(seconds)
        self._unread_step_s = seconds
        again = [sequence for sequence in answers if sequence.again]
        for sequence in answers:
            self._may_die_of(sequence)
            sequence.ran += 1
            sequence.again = max(0, sequence.again - 1)
        rows = tuple(self._row(s) for s in answers if s not in again)
        self._new.append(Decoded(self.step.n, rows, seconds, tuple(s.seq for s in again)))

    def _earned(self, step_s: float) -> float:
        """What a decode step lets reading take beside it (R4); nothing, where there was none since the last slice."""
        share = self.step.read_share
        return max(step_s * share / (1 - share), self.step.gap_s) if step_s else 0.0

    def _row(self, sequence: Sequence) -> Row:
        sequence.written += 1
        ended: Literal["stop", "length"] | None = None
        if sequence.written == sequence.answer:
            ended = "stop"
        elif sequence.written == sequence.max_tokens:
            ended = "length"
        if ended is not None:
            self._forget(sequence.seq)
        return Row(sequence.seq, sequence.written, ended)


def _allowed(step: Step) -> set[Seq]:
    return {*step.decode, *([] if step.read is None else [step.read])}
