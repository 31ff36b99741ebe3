"""What a scripted engine knows of its sequences, and what it may be told of them.  Knows no time and no step.

Stricter than a real engine: what can only come from a bug on the other side is a ProtocolError and ends the test, where
a real engine does nothing (a stranger) or fails one sequence (a wrong page).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from attrs import define

from strata.messages import Grant, Open, Ready, Row, Seq, SwapIn, SwapOut, SwappedIn, SwappedOut, TokenLogprob
from strata.testing.language import END
from strata.testing.pages import ProtocolError, ScriptedPages
from strata.testing.script import letters


@define
class HalfChunk:
    index: int
    end: int
    total: int
    done: int = 0


class ScriptedSequence:
    """One sequence.  `position` tokens would have their keys and values written."""

    def __init__(self, opened: Open, answer: Callable[[int], int], ready: Ready) -> None:
        self.seq = opened.seq
        self.opened = opened
        self.written = 0
        """Tokens of its answer that are chosen, by this engine or one before it."""
        self.position = opened.known
        self.pages = list(opened.pages)
        """One in slot n of the arena has the number of all pages + n."""
        self.away = 0
        """How many of its pages lie in the arena."""
        self.chunk: HalfChunk | None = None
        self.said_wants = False
        self._answer = answer
        self._ready = ready

    def __repr__(self) -> str:
        state = f"{self.position} of {len(self.opened.tokens)} read" if self.unread else f"{self.written} written"
        return f"<ScriptedSequence {self.seq}: {state}, {len(self.pages)} pages>"

    @property
    def unread(self) -> bool:
        return self.position < len(self.opened.tokens)

    @property
    def repeats(self) -> bool:
        """Whether the token after the next step is written already, by an engine before this one."""
        return self.position < len(self.opened.tokens) + self.written - 1

    def take_written(self) -> None:
        """What it was opened with is its answer so far.  Raises ProtocolError if it is another."""
        for token in self.opened.written:
            row = self.write()
            if row.token != token or row.ended:
                raise ProtocolError(f"sequence {self.seq} wrote {row}, and is said to have written {token}")

    @property
    def chunk_end(self) -> int:
        """Where the chunk that is under way, or the next one, ends (tokens).  The grid starts at 0."""
        size = self._ready.chunk_tokens
        return min((self.position // size + 1) * size, len(self.opened.tokens))

    @property
    def on_device(self) -> bool:
        """Whether all of its pages are there: without one of them it can't run."""
        return self.away == 0

    def has_pages(self) -> bool:
        """Whether its pages hold what comes next: the whole of a chunk, or one token."""
        end = self.chunk_end if self.unread else self.position + 1
        return end <= len(self.pages) * self._ready.page_tokens

    def begin_chunk(self, slices_per_chunk: int) -> HalfChunk:
        """A chunk that is cut short by the prompt's end has its part of the slices, at least one."""
        size = self._ready.chunk_tokens
        tokens = self.chunk_end - self.position
        total = max(1, -(-slices_per_chunk * tokens // size))
        self.chunk = HalfChunk(index=self.position // size, end=self.chunk_end, total=total)
        return self.chunk

    def write(self) -> Row:
        """The next token of its answer."""
        token = self._choose()
        self.written += 1
        return Row(self.seq, token, self._end(token), *self._logprobs(token))

    def _choose(self) -> int:
        token = self._answer(self.written)
        if token == END and self.written < self.opened.sampling.min_tokens:
            return letters(self.opened, self.written)
        return token

    def _end(self, token: int) -> Literal["stop", "length"] | None:
        sampling = self.opened.sampling
        if token == END and not sampling.ignore_eos:
            return "stop"
        full = len(self.opened.tokens) + self.written >= self._ready.context
        return "length" if full or self.written >= sampling.max_tokens else None

    def _logprobs(self, token: int) -> tuple[float | None, tuple[TokenLogprob, ...]]:
        """Made up: the chosen token has -0.5, the next ids one less each."""
        asked = self.opened.sampling.logprobs
        if asked is None:
            return None, ()
        top = tuple(TokenLogprob((token + n) % (END + 1), -0.5 - n) for n in range(asked))
        return -0.5, top


@define
class Move:
    """Pages on their way to the arena or back."""

    sequence: ScriptedSequence
    asked: SwapOut | SwapIn
    done: int = 0
    seconds: float = 0.0

    @property
    def fact(self) -> SwappedOut | SwappedIn:
        asked = self.asked
        if isinstance(asked, SwapOut):
            return SwappedOut(asked.seq, asked.pages, asked.slots, self.seconds)
        return SwappedIn(asked.seq, asked.slots, asked.pages, self.seconds)


class Sequences:
    """All that are open, and the pages that they hold."""

    def __init__(self, ready: Ready, *, strict: bool) -> None:
        """`strict`: a sequence that was never opened is an error, not a stranger to be ignored."""
        self._ready = ready
        self._strict = strict
        self._open: dict[Seq, ScriptedSequence] = {}
        self._seen: set[Seq] = set()
        self._pages = ScriptedPages(ready.pages, ready.page_tokens, ready.slots)
        self.moves: deque[Move] = deque()
        """In order; the first one's pages are next."""

    def __repr__(self) -> str:
        return f"<Sequences {len(self._open)} open, {self.held_pages} pages held>"

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, seq: Seq) -> bool:
        return seq in self._open

    @property
    def held_pages(self) -> int:
        return self._pages.held

    @property
    def held_slots(self) -> int:
        return self._pages.held_slots

    def get(self, seq: Seq) -> ScriptedSequence | None:
        """None if it is not open.  Raises ProtocolError if it never was, unless strangers are welcome."""
        if seq not in self._seen and self._strict:
            raise ProtocolError(f"sequence {seq} was never opened")
        return self._open.get(seq)

    def open(self, opened: Open, answer: Callable[[int], int]) -> None:
        """Raises ProtocolError."""
        if opened.seq in self._seen:
            raise ProtocolError(f"sequence {opened.seq} was opened twice")
        self._check_tokens(opened)
        self._seen.add(opened.seq)
        self._pages.share(opened.seq, opened.pages, opened.tokens)
        sequence = self._open[opened.seq] = ScriptedSequence(opened, answer, self._ready)
        sequence.take_written()

    def grant(self, grant: Grant) -> None:
        """Nothing happens if it has ended meanwhile.  Raises ProtocolError."""
        sequence = self.get(grant.seq)
        if sequence is not None:
            self._pages.grant(grant.seq, grant.pages)
            sequence.pages += grant.pages
            sequence.said_wants = False

    def read(self, sequence: ScriptedSequence, end: int) -> None:
        """Its prompt is read up to here."""
        self._pages.read(sequence.pages, sequence.opened.tokens, sequence.position, end)
        sequence.position = end

    def ask_move(self, asked: SwapOut | SwapIn) -> None:
        """Nothing happens if it has ended meanwhile.  Raises ProtocolError."""
        sequence = self.get(asked.seq)
        if sequence is not None:
            sources, targets = self._places(asked)
            under_way = {place for move in self.moves for place in self._places(move.asked)[0]}
            if not set(sources) <= set(sequence.pages) - under_way:
                raise ProtocolError(f"what is moved is not the sequence's, or is being moved already: {asked}")
            self._pages.begin_move(asked.seq, sources, targets)
            self.moves.append(Move(sequence, asked))

    def end_move(self) -> SwappedOut | SwappedIn:
        """The first one's last page is copied."""
        move = self.moves.popleft()
        sources, targets = self._places(move.asked)
        self._pages.end_move(move.asked.seq, sources, targets)
        moved = dict(zip(sources, targets, strict=True))
        move.sequence.pages = [moved.get(place, place) for place in move.sequence.pages]
        move.sequence.away += len(sources) if isinstance(move.asked, SwapOut) else -len(sources)
        return move.fact

    def _places(self, asked: SwapOut | SwapIn) -> tuple[tuple[int, ...], tuple[int, ...]]:
        slots = tuple(self._ready.pages + slot for slot in asked.slots)
        return (asked.pages, slots) if isinstance(asked, SwapOut) else (slots, asked.pages)

    def forget(self, seq: Seq) -> bool:
        """Whether there was something to forget."""
        sequence = self._open.pop(seq, None)
        if sequence is not None:
            for move in [move for move in self.moves if move.sequence is sequence]:
                self._pages.take_back(seq, self._places(move.asked)[1])
                self.moves.remove(move)
            self._pages.take_back(seq, sequence.pages)
        return sequence is not None

    def _check_tokens(self, opened: Open) -> None:
        tokens, context = len(opened.tokens), self._ready.context
        if not 0 < tokens < context:
            raise ProtocolError(f"sequence {opened.seq} has {tokens} tokens, the context is {context}")
        if opened.known != len(opened.pages) * self._ready.page_tokens or opened.known >= tokens:
            raise ProtocolError(f"sequence {opened.seq} knows {opened.known} of {tokens} tokens, {opened.pages=}")
