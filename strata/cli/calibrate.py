"""Times a model's slices and decode steps on this machine, for `strata simulate --calibrate`.

A room of its own because here alone a real engine meets the simulator, which knows none.  The engine is driven by
hand, on this thread: nothing else runs beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Final

import attrs

from strata.config import Settings
from strata.engine.engine import Engine
from strata.messages import ChunkRead, Close, Decoded, FromEngine, Grant, Open, Sampling, Seq, Step
from strata.models import open_model
from strata.simulate.cost import CostModel
from strata.simulate.fit import Shape, SliceSample, StepSample, fit

PROMPTS: Final = (24, 160, 256, 512, 1600)
"""Prompts to read (tokens), each alone; cut to what the context leaves."""
ROWS: Final = (1, 2, 4, 8)
GROUPS: Final = ((40, 8), (700, 4))
"""Tokens before the rows that are decoded, and how many of those there are at most."""
STEPS: Final = 12
"""Of each group of rows; the first ones are not counted."""
SKIPPED: Final = 3
VOCABULARY: Final = 200
"""Token ids that any model has; which ones makes no difference to the time."""


def calibrate(path: Path, settings: Settings, say: Callable[[str], None]) -> CostModel:
    """Half a minute on the default model.  Raises ModelError, ConfigError."""
    from strata.cpu.kernels import TILE
    from strata.engine.from_file import make_engine

    file = open_model(path)
    # What a step takes is measured, by its rows: none may be offered beside those that are asked for.
    engine = make_engine(file, attrs.evolve(settings, engine=attrs.evolve(settings.engine, speculate=0)))
    try:
        bench = _Bench(engine, chunk_tokens=settings.engine.chunk_tokens, layers=file.config.layers, tile=TILE)
        # The first pass finds the caches cold, and is not counted.
        bench.read(bench.longest(64))
        say(f"reading {len(PROMPTS)} prompts")
        slices = [sample for prompt in PROMPTS for sample in bench.read(bench.longest(prompt))]
        say("decoding " + ", ".join(str(rows) for rows in ROWS) + " rows")
        steps = [sample for context, most in GROUPS for sample in bench.decode(context, most)]
        on = f"{file.name} ({file.quantisation}) on {engine.ready(1).device}"
        return fit(on, bench.shape, slices, steps)
    finally:
        engine.close()


class _Bench:
    """One engine, and sequences to time it with."""

    def __init__(self, engine: Engine, *, chunk_tokens: int, layers: int, tile: int) -> None:
        self._engine = engine
        self._ready = engine.ready(1)
        self._chunk_tokens = chunk_tokens
        self._layers = layers
        self._tile = tile
        self._seqs = count(1)
        self._steps = count(1)
        self._free = list(range(self._ready.pages))
        self._held: dict[Seq, tuple[int, ...]] = {}
        self._slices_of: dict[int, int] = {}
        """By the tokens of a chunk."""

    def longest(self, prompt: int) -> int:
        return min(prompt, self._ready.context // 2)

    @property
    def shape(self) -> Shape:
        """How many rows a slice has: those of the largest chunk, by the number of its slices."""
        tokens, slices = max(self._slices_of.items())
        tiles, stretches = self._computed(tokens) // self._tile, slices // self._layers
        return Shape(self._layers, -(-tiles // stretches) * self._tile, self._tile)

    def read(self, prompt: int) -> list[SliceSample]:
        """One sample a chunk."""
        seq = self._open(prompt, answer=1)
        self._tell(read=seq)
        samples, start, taken = [], 0, list[float]()
        while start < prompt:
            began = time.perf_counter()
            facts = self._advance()
            taken.append(time.perf_counter() - began)
            if any(isinstance(fact, ChunkRead) for fact in facts):
                end = min(prompt, start + self._chunk_tokens)
                self._slices_of[end - start] = len(taken)
                rows = self._computed(end - start) * self._layers / len(taken)
                samples.append(SliceSample(rows, (start + end) / 2, _undisturbed(taken)))
                taken, start = [], end
        self._close([seq])
        return samples

    def decode(self, context: int, most: int) -> list[StepSample]:
        """Samples of steps of more and more rows, each of them after so many tokens."""
        context, answer = self.longest(context), len(ROWS) * STEPS + 1
        most = min(most, len(self._free) // self._pages(context + answer))
        groups = [rows for rows in ROWS if rows <= most]
        seqs = [self._open(context, answer) for _ in range(max(groups))]
        for seq in seqs:
            self._tell(read=seq)
            while not any(isinstance(fact, Decoded) for fact in self._advance()):
                pass
        written = dict.fromkeys(seqs, 1)
        samples = []
        for rows in groups:
            chosen = seqs[:rows]
            self._tell(decode=tuple(chosen))
            times = [self._step(chosen, written) for _ in range(STEPS)]
            positions = sum(context + written[seq] - STEPS // 2 for seq in chosen)
            samples.append(StepSample(rows, positions, _undisturbed(times[SKIPPED:])))
        self._close(seqs)
        return samples

    def _step(self, seqs: Iterable[Seq], written: dict[Seq, int]) -> float:
        began = time.perf_counter()
        self._advance()
        taken = time.perf_counter() - began
        for seq in seqs:
            written[seq] += 1
        return taken

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._ready.page_tokens)

    def _computed(self, tokens: int) -> int:
        """Rows of whole tiles."""
        return -(-tokens // self._tile) * self._tile

    def _open(self, prompt: int, answer: int) -> Seq:
        seq = Seq(next(self._seqs))
        tokens = tuple((7 * seq + 31 * at) % VOCABULARY for at in range(prompt))
        self._engine.handle(Open(seq, tokens, Sampling(temperature=0.0, ignore_eos=True, max_tokens=answer)))
        self._held[seq] = tuple(self._free.pop() for _ in range(self._pages(prompt + answer)))
        self._engine.handle(Grant(seq, self._held[seq]))
        return seq

    def _close(self, seqs: Iterable[Seq]) -> None:
        for seq in seqs:
            self._engine.handle(Close(seq))
            self._free.extend(self._held.pop(seq))

    def _tell(self, *, read: Seq | None = None, decode: tuple[Seq, ...] = ()) -> None:
        self._engine.handle(Step(next(self._steps), decode=decode, read=read))

    def _advance(self) -> list[FromEngine]:
        """One slice or one step."""
        assert self._engine.advance(), "an engine that is told to work works"
        return self._engine.take_facts()


def _undisturbed(times: list[float]) -> float:
    """What one of them takes: the lower quartile, so that whatever else the machine does meanwhile counts little."""
    return quantiles(times, n=4)[0] if len(times) > 1 else times[0]
