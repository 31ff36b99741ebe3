"""How many tokens a second a model reads and writes here: chunks and decode steps of the model that an engine runs.

The model is driven by hand, on this thread: no engine, no scheduler and no sampling are in these figures.  What they
add is `overhead`'s to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

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
        for context in CONTEXTS:
            if context + self._chunk_tokens > self._context:
                self.left_out.append(f"reading after {context:,} tokens: the context is {self._context:,}")
                continue
            say(f"reading after {context:,} tokens")
            yield _row("read", context, 1, self._chunk_tokens, self._chunks_at(context))
        for context in DECODED_AT:
            for rows in BATCHES:
                if why := self._hindered(context, rows):
                    self.left_out.append(f"decoding {rows} rows after {context:,} tokens: {why}")
                    continue
                say(f"decoding {rows} rows after {context:,} tokens")
                yield _row("decode", context, rows, STEPS * rows, self._steps_at(context, rows), steps=STEPS)

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


def _row(
    what: str, context: int, rows: int, tokens: int, seconds: Sequence[float], *, steps: int = 1
) -> Mapping[str, Any]:
    return {
        "what": what,
        "context": context,
        "rows": rows,
        "tokens_per_s": tokens / median(seconds),
        "ms": 1000 * median(seconds) / steps,
        "samples": [tokens / one for one in seconds],
    }
