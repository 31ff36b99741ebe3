"""How many tokens a second a model reads and writes here: chunks and decode steps of the model that an engine runs.

The model is driven by hand, on this thread: no engine, no scheduler and no sampling are in these figures.  What they
add is `overhead`'s to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import numpy as np
from attrs import frozen

from strata.bench.report import Column, Report
from strata.config import Settings
from strata.models.architecture import DecodeRow, Model

CONTEXTS: Final = (0, 1024, 2048, 4096)
"""Tokens that are there already when a chunk is read."""
DECODED_AT: Final = (0, 4096)
BATCHES: Final = (1, 4, 8)
STEPS: Final = 16
"""Of every sample of decoding."""
VOCABULARY: Final = 200
"""Token ids that any model has; which ones makes no difference to the time."""

COLUMNS: Final = (
    Column("what", "what"),
    Column("context", "tokens before"),
    Column("rows", "rows"),
    Column("tokens_per_s", "tokens/s", ",.1f", drawn=True),
    Column("ms", "a chunk or step (ms)", ",.1f"),
)


def throughput(path: Path, settings: Settings, repeats: int, say: Callable[[str], None]) -> Report:
    """Medians of so many chunks, and of so many times `STEPS` steps.  Raises ModelError, ConfigError."""
    from strata.engine.budget import plan
    from strata.engine.from_file import free_bytes, open_device
    from strata.models.file import open_model
    from strata.models.make import make_model

    file, ops = open_model(path), open_device(settings.engine)
    model = make_model(file, ops)
    try:
        free = free_bytes(ops, settings.engine)
        budget = plan(model, settings.engine, max_running=max(BATCHES), free_bytes=free)
        # One page of the arena, to copy by.
        model.allocate(budget.pages, budget.page_tokens, context=budget.context, rows=budget.rows, slots=1)
        bench = Bench(model, budget.pages, budget.page_tokens, settings.engine.chunk_tokens, budget.context, repeats)
        rows = tuple(bench.rows(say))
        return Report(
            what="throughput",
            model=f"{file.name} ({file.quantisation})",
            device=model.device,
            repeats=repeats,
            columns=COLUMNS,
            rows=rows,
            left_out=tuple(bench.left_out),
        )
    finally:
        model.close()


@frozen
class Job:
    """What one row of the table is about."""

    what: Literal["read", "decode"]
    context: int
    rows: int

    def __str__(self) -> str:
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        doing = "reading" if self.what == "read" else f"decoding {rows}"
        return f"{doing} after {self.context:,} tokens"


def left_s(expected: Sequence[float], done: int, taken_s: float) -> float:
    """About how many seconds those after the first `done` will take: as expected, and as far off as those were."""
    so_far = sum(expected[:done])
    return sum(expected[done:]) * (taken_s / so_far if so_far else 1.0)


@frozen
class Handle:
    """A sequence as the model sees it."""

    pages: tuple[int, ...]


class Bench:
    """A model with its memory, and sequences of any length in it: what they hold makes no difference to the time."""

    def __init__(
        self, model: Model, pages: int, page_tokens: int, chunk_tokens: int, context: int, repeats: int
    ) -> None:
        self._model = model
        self._pages = pages
        self._page_tokens = page_tokens
        self._chunk_tokens = chunk_tokens
        self._context = context
        self._repeats = repeats
        self._workspace = model.workspace(chunk_tokens)
        self._whole = Handle(tuple(range(min(pages, self._pages_of(context)))))
        """The sequence that is read; the rows that are decoded go on from copies of it."""
        self._read = 0
        self.left_out: list[str] = []

    def rows(self, say: Callable[[str], None]) -> Iterator[Mapping[str, Any]]:
        # The first chunk finds the caches cold, and is not counted.
        self._chunk(0, min(64, self._chunk_tokens))
        jobs = [*self._reads(), *self._decodes()]
        expected = self._expected(jobs)
        began = time.perf_counter()
        for number, job in enumerate(jobs):
            left = left_s(expected, number, time.perf_counter() - began)
            say(f"{number + 1} of {len(jobs)}: {job}; about {left:,.0f} s to go")
            if job.what == "read":
                yield _row(job, self._chunk_tokens, self._chunks_at(job.context))
            else:
                yield _row(job, STEPS * job.rows, self._steps_at(job.context, job.rows), steps=STEPS)

    def _reads(self) -> Iterator[Job]:
        for context in CONTEXTS:
            job = Job("read", context, 1)
            if context + self._chunk_tokens > self._context:
                self.left_out.append(f"{job}: the context is {self._context:,}")
            else:
                yield job

    def _decodes(self) -> Iterator[Job]:
        for context, rows in product(DECODED_AT, BATCHES):
            job = Job("decode", context, rows)
            if why := self._hindered(context, rows):
                self.left_out.append(f"{job}: {why}")
            else:
                yield job

    def _expected(self, jobs: Sequence[Job]) -> list[float]:
        """About how many seconds each takes, by one short chunk and one step of a row."""
        tokens = min(64, self._chunk_tokens)
        token_s, step_s = self._chunk(0, tokens) / tokens, self._steps([self._whole], 0, 1)
        read, seconds = 0, []
        for job in jobs:
            reached = max(read, job.context)
            taken = (reached - read) * token_s
            read = reached
            if job.what == "read":
                taken += self._repeats * self._chunk_tokens * token_s
            else:
                # A row more is about half a step, and 2K tokens before it are one.
                taken += (self._repeats * STEPS + 2) * step_s * (1 + job.rows) / 2 * (1 + job.context / 2048)
            seconds.append(taken)
        return seconds

    def _hindered(self, context: int, rows: int) -> str | None:
        if context + STEPS > self._context:
            return f"the context is {self._context:,}"
        needed = rows * self._pages_of(context + STEPS)
        return f"{needed} pages are needed and {self._pages} are there" if needed > self._pages else None

    # -- reading ------------------------------------------------------------------------------------------------------

    def _chunks_at(self, context: int) -> list[float]:
        """Seconds of a chunk that begins there, again and again."""
        self._reach(context)
        return [self._chunk(context, self._chunk_tokens) for _ in range(self._repeats)]

    def _reach(self, position: int) -> None:
        while self._read < position:
            tokens = min(self._chunk_tokens, position - self._read)
            self._chunk(self._read, tokens)
            self._read += tokens

    def _chunk(self, start: int, tokens: int) -> float:
        ids = (np.arange(start, start + tokens, dtype=np.int64) * 31) % VOCABULARY
        began = time.perf_counter()
        for _ in self._model.read(self._whole, start, ids, self._workspace):
            pass
        return time.perf_counter() - began

    # -- decoding -----------------------------------------------------------------------------------------------------

    def _steps_at(self, context: int, rows: int) -> list[float]:
        """Seconds of `STEPS` steps from there on, again and again."""
        self._reach(context)
        handles = self._copies(context, rows)
        self._steps(handles, context, 2)
        return [self._steps(handles, context, STEPS) for _ in range(self._repeats)]

    def _copies(self, context: int, rows: int) -> list[Handle]:
        """So many sequences of that length, each in pages of its own: shared ones would be read from a cache."""
        length, filled = self._pages_of(context + STEPS), self._pages_of(context)
        handles = [Handle(tuple(range(row * length, (row + 1) * length))) for row in range(rows)]
        for place in range(filled):
            self._model.copy_out(place, 0)
            for handle in handles[1:]:
                self._model.copy_in(0, handle.pages[place])
        return handles

    def _steps(self, handles: Sequence[Handle], context: int, steps: int) -> float:
        began = time.perf_counter()
        for step in range(steps):
            self._model.decode([DecodeRow(handle, 7 + step, context + step) for handle in handles])
        return time.perf_counter() - began

    def _pages_of(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)


def _row(job: Job, tokens: int, seconds: Sequence[float], *, steps: int = 1) -> Mapping[str, Any]:
    return {
        "what": job.what,
        "context": job.context,
        "rows": job.rows,
        "tokens_per_s": tokens / median(seconds),
        "ms": 1000 * median(seconds) / steps,
        "samples": [tokens / one for one in seconds],
    }
