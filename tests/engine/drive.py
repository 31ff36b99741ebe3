"""An engine driven by hand, without a thread: messages go in, one slice or step runs, facts come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from operator import invert
from typing import Any

import attrs
from toy_model import ToyModel

from strata.config import EngineSettings
from strata.engine.budget import Budget
from strata.engine.engine import Engine
from strata.engine.trace import Trace
from strata.messages import (
    ChunkRead,
    Close,
    Closed,
    Decoded,
    FromEngine,
    Grant,
    Open,
    Progress,
    Row,
    Sampling,
    Seq,
    SeqFailed,
    Step,
    SwapIn,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Wants,
)
from strata.models.architecture import Model

CHUNK, PAGE, PAGES, CONTEXT, SLOTS = 64, 16, 96, 1024, 24
GREEDY = Sampling(temperature=0.0, ignore_eos=True, max_tokens=8)


def always(token: int, **named: object) -> Sampling:
    """Chooses this token, whatever the model thinks."""
    return attrs.evolve(GREEDY, logit_bias=((token, 10_000.0),), **named)


def prompt(seq: int, length: int) -> tuple[int, ...]:
    """Tokens that every model of these tests has and none minds."""
    return tuple(3 + (seq * 5 + i * 7) % 23 for i in range(length))


class Drive:
    """An engine, its pages, and what it has said.  With a real model each slice and each step counts as a second."""

    def __init__(
        self,
        model: Model | None = None,
        *,
        chunk: int = CHUNK,
        page: int = PAGE,
        pages: int = PAGES,
        workspaces: int = 2,
        context: int = CONTEXT,
        slots: int = SLOTS,
        speculate: int = 0,
        trace: Trace | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.model: Any = model or ToyModel()
        self.engine = Engine(
            self.model,
            EngineSettings(chunk_tokens=chunk, page_tokens=page, max_half_read=workspaces, speculate=speculate),
            Budget(pages, page, context, rows=8, slots=slots),
            trace=trace,
            clock=clock or getattr(self.model, "watch", None) or count().__next__,
        )
        self.facts: list[FromEngine] = []
        self.pages = frozenset(range(pages))
        self.places: dict[Seq, list[int]] = {}
        """Its pages in order; one that lies in slot n of the arena is ~n."""
        self.moving: list[SwapOut | SwapIn] = []
        self._slots = frozenset(range(slots))
        self.kept: set[int] = set()
        """Pages that are cached: not granted again, even if nobody holds them."""
        self.page = page
        self._steps = 0

    # -- saying -----------------------------------------------------------------------------------------------------

    def tell(self, *messages: Any) -> None:
        for message in messages:
            self.engine.handle(message)
        self._hear()

    def step(self, *decode: Seq, read: Seq | None = None, until: int | None = None, **named: Any) -> int:
        self._steps += 1
        self.tell(Step(self._steps, decode, read, until, **named))
        return self._steps

    def open(
        self,
        seq: Seq,
        tokens: Iterable[int],
        sampling: Sampling = GREEDY,
        *,
        hold: int | None = None,
        cached: tuple[int, ...] = (),
        written: Iterable[int] = (),
    ) -> None:
        """With `cached` pages, which hold its beginning, and others for `hold` tokens more (None: for all its life)."""
        prompt, known = tuple(tokens), len(cached) * self.page
        self.places.setdefault(seq, []).extend(cached)
        self.tell(Open(seq, prompt, sampling, cached, known, tuple(written)))
        self.grant(seq, len(prompt) + sampling.max_tokens - known if hold is None else hold)

    def grant(self, seq: Seq, tokens: int) -> tuple[int, ...]:
        """Pages for so many tokens more, the highest first, so that order and number are not the same."""
        count = -(-tokens // self.page)
        pages = tuple(sorted(self.free, reverse=True)[:count])
        assert len(pages) == count, "the tests' pages are used up"
        self.places.setdefault(seq, []).extend(pages)
        self.tell(Grant(seq, pages))
        return pages

    @property
    def free(self) -> frozenset[int]:
        targets = (move.pages for move in self.moving if isinstance(move, SwapIn))
        return self.pages.difference(self.kept, *self.held.values(), *targets)

    @property
    def free_slots(self) -> frozenset[int]:
        targets = (move.slots for move in self.moving if isinstance(move, SwapOut))
        return self._slots.difference(*self.away.values(), *targets)

    @property
    def held(self) -> dict[Seq, list[int]]:
        return {seq: [place for place in places if place >= 0] for seq, places in self.places.items()}

    @property
    def away(self) -> dict[Seq, list[int]]:
        """Slots of the arena."""
        return {seq: [~place for place in places if place < 0] for seq, places in self.places.items()}

    def swap_out(self, seq: Seq, pages: Iterable[int] | None = None) -> None:
        """These pages of the sequence (None: all that are here) go to the lowest free slots; done when told."""
        leave = tuple(self.held[seq] if pages is None else pages)
        slots = tuple(sorted(self.free_slots)[: len(leave)])
        self._move(SwapOut(seq, leave, slots))

    def swap_in(self, seq: Seq, slots: Iterable[int] | None = None) -> None:
        """These slots (None: all) come back, to the highest free pages."""
        come = tuple(self.away.get(seq, []) if slots is None else slots)
        pages = tuple(sorted(self.free, reverse=True)[: len(come)])
        self._move(SwapIn(seq, come, pages))

    def _move(self, message: SwapOut | SwapIn) -> None:
        self.moving.append(message)
        self.tell(message)

    def can_leave(self, seq: Seq) -> list[int]:
        """Its pages that nobody else holds and that are not under way."""
        held = self.held
        leaving = {page for move in self.moving if isinstance(move, SwapOut) for page in move.pages}
        others = set().union(leaving, *(pages for other, pages in held.items() if other != seq))
        return [page for page in held.get(seq, []) if page not in others]

    def can_come_back(self, seq: Seq) -> list[int]:
        """Its slots that are not under way."""
        coming = {slot for move in self.moving if isinstance(move, SwapIn) for slot in move.slots}
        return [slot for slot in self.away.get(seq, []) if slot not in coming]

    def move(self, seq: Seq) -> None:
        """All of its pages to the arena and back, elsewhere, while nothing else runs."""
        self.swap_out(seq)
        self.run_moves()
        self.swap_in(seq)
        self.run_moves()

    def run_moves(self) -> None:
        while self.engine.usage().moves:
            self.advance()

    def close(self, seq: Seq) -> None:
        self.tell(Close(seq))

    # -- running ----------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        ran = self.engine.advance()
        self._hear()
        return ran

    def run(self, holds: Callable[[], bool] | None = None) -> None:
        """Until it holds, or there is nothing to do."""
        while (holds is None or not holds()) and self.advance():
            pass
        assert holds is None or holds(), f"the engine stands; it said {self.facts}"

    def until_written(self, seq: Seq, count: int) -> None:
        self.run(lambda: len(self.tokens(seq)) >= count)

    def _hear(self) -> None:
        facts = self.engine.take_facts()
        self.facts += facts
        for seq in [seq for fact in facts for seq in gone(fact)]:
            self.places.pop(seq, None)
            self.moving = [move for move in self.moving if move.seq != seq]
        for fact in facts:
            match fact:
                case SwappedOut(seq, pages, slots):
                    self._moved(SwapOut(seq, pages, slots), zip(pages, map(invert, slots), strict=True))
                case SwappedIn(seq, slots, pages):
                    self._moved(SwapIn(seq, slots, pages), zip(map(invert, slots), pages, strict=True))

    def _moved(self, asked: SwapOut | SwapIn, places: Iterable[tuple[int, int]]) -> None:
        self.moving.remove(asked)
        moved = dict(places)
        self.places[asked.seq] = [moved.get(place, place) for place in self.places[asked.seq]]

    # -- hearing ----------------------------------------------------------------------------------------------------

    def rows(self, seq: Seq) -> list[Row]:
        return [row for fact in self.facts if isinstance(fact, Decoded) for row in fact.rows if row.seq == seq]

    def tokens(self, seq: Seq) -> list[int]:
        return [row.token for row in self.rows(seq)]

    def ended(self, seq: Seq) -> str | None:
        return next((row.ended for row in self.rows(seq) if row.ended), None)

    def error(self, seq: Seq) -> str | None:
        return next((fact.error for fact in self.facts if isinstance(fact, SeqFailed) and fact.seq == seq), None)

    def kinds(self) -> list[str]:
        """What ran and what was said, in order: `1 slice`, `2 chunk`, `1+2 decode`, `1 wants`."""
        return [words for fact in self.facts if (words := _words(fact))]


def gone(fact: FromEngine) -> list[Seq]:
    """Whose pages are free from this fact on."""
    match fact:
        case Decoded():
            return [row.seq for row in fact.rows if row.ended]
        case Closed() | SeqFailed():
            return [fact.seq]
        case _:
            return []


def _words(fact: FromEngine) -> str | None:
    match fact:
        case Progress():
            return f"{fact.seq} slice"
        case ChunkRead():
            return f"{fact.seq} chunk"
        case Decoded():
            return f"{'+'.join(str(row.seq) for row in fact.rows)} decode"
        case Wants():
            return f"{fact.seq} wants"
        case _:
            return None
