"""An engine driven by hand, without a thread: messages go in, one slice or step runs, facts come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

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
    Wants,
)
from strata.models.architecture import Model

CHUNK, PAGE, PAGES, CONTEXT = 64, 16, 96, 1024
GREEDY = Sampling(temperature=0.0, ignore_eos=True, max_tokens=8)


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
        trace: Trace | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.model: Any = model or ToyModel()
        self.engine = Engine(
            self.model,
            EngineSettings(chunk_tokens=chunk, page_tokens=page, max_half_read=workspaces),
            Budget(pages, page, context, rows=8),
            trace=trace,
            clock=clock or getattr(self.model, "watch", None) or count().__next__,
        )
        self.facts: list[FromEngine] = []
        self.pages = frozenset(range(pages))
        self.held: dict[Seq, list[int]] = {}
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
    ) -> None:
        """With `cached` pages, which hold its beginning, and others for `hold` tokens more (None: for all its life)."""
        prompt, known = tuple(tokens), len(cached) * self.page
        self.held.setdefault(seq, []).extend(cached)
        self.tell(Open(seq, prompt, sampling, cached, known))
        self.grant(seq, len(prompt) + sampling.max_tokens - known if hold is None else hold)

    def grant(self, seq: Seq, tokens: int) -> tuple[int, ...]:
        """Pages for so many tokens more, the highest first, so that order and number are not the same."""
        count = -(-tokens // self.page)
        pages = tuple(sorted(self.free, reverse=True)[:count])
        assert len(pages) == count, "the tests' pages are used up"
        self.held.setdefault(seq, []).extend(pages)
        self.tell(Grant(seq, pages))
        return pages

    @property
    def free(self) -> frozenset[int]:
        return self.pages.difference(self.kept, *self.held.values())

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
            self.held.pop(seq, None)

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
