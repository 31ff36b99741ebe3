#!/usr/bin/env python3
"""What it costs to read in slices, and how long a slice is: the same prompt, in slices and in one slice a chunk.

Two engines on the same file take turns, chunk by chunk, so that a machine whose speed drifts treats them alike.  One's
model is asked for a whole chunk at a time, which is what a server that can't stop between two layers does; both
compute the same numbers.  The clock runs while an engine does, around each slice.

    bench/slices.py --pairs 5 --out bench/results/slices.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray
from record import machine

from strata.config import Settings
from strata.engine.budget import plan
from strata.engine.engine import Engine
from strata.engine.from_file import free_bytes, open_device
from strata.messages import ChunkRead, Close, Decoded, Grant, Open, Sampling, Seq, Step
from strata.models.architecture import Logits, Model, SequenceView, Workspace
from strata.models.file import WEIGHTS, open_model
from strata.models.make import make_model
from strata.models.pull import pull_default

VOCABULARY = 200
PAGE = 64


class Undivided:
    """A model whose chunks are one slice each."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def slices(self, _tokens: int, _start: int) -> int:
        return 1

    def read(
        self, handle: SequenceView, start: int, tokens: NDArray[np.int64], workspace: Workspace
    ) -> Generator[None, None, Logits]:
        reading = self._model.read(handle, start, tokens, workspace)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                return end.value
        yield


@define
class Reader:
    """An engine that reads one prompt after another."""

    engine: Engine
    tokens: int
    reads: int = 0
    seconds: list[float] = field(factory=list)
    """Of each whole prompt."""
    slices: list[float] = field(factory=list)
    """Of the last chunk's."""

    def read(self, last_chunk: int) -> Iterator[None]:
        """One prompt; yields after each chunk but the last."""
        self.reads += 1
        seq = Seq(self.reads)
        prompt = tuple((at * 31 + self.reads) % VOCABULARY for at in range(self.tokens))
        self.engine.handle(Open(seq, prompt, Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)))
        self.engine.handle(Grant(seq, tuple(range(-(-(self.tokens + 1) // PAGE)))))
        self.engine.handle(Step(self.reads, read=seq))
        spent: list[float] = []
        seconds, position, is_read = 0.0, 0, False
        while not is_read:
            began = time.perf_counter()
            facts = self._advance()
            took = time.perf_counter() - began
            seconds += took
            if position >= last_chunk:
                spent.append(took)
            chunks = [fact.position for fact in facts if isinstance(fact, ChunkRead)]
            position, is_read = max(position, *chunks, 0), any(isinstance(fact, Decoded) for fact in facts)
            if chunks and not is_read:
                yield
        self.seconds.append(seconds)
        self.slices += spent
        self.engine.handle(Close(seq))
        self._advance()

    def forget(self) -> None:
        """What was measured so far."""
        self.seconds.clear()
        self.slices.clear()

    def _advance(self) -> Sequence[Any]:
        self.engine.advance()
        return self.engine.take_facts()


def opened(path: Path, settings: Settings, tokens: int, *, undivided: bool) -> Reader:
    ops = open_device(settings.engine)
    model = make_model(open_model(path, WEIGHTS), ops)
    budget = plan(model, settings.engine, max_running=1, free_bytes=free_bytes(ops, settings.engine))
    return Reader(Engine(Undivided(model) if undivided else model, settings.engine, budget), tokens)


def place(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, help="a GGUF file; the default model if none is named")
    parser.add_argument("--context", type=int, default=4096, help="tokens before the chunk whose slices are timed")
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the JSON to write")
    options = parser.parse_args()
    path, about = options.model or pull_default(), machine()
    settings = Settings.of(threads=options.threads, chunk_tokens=options.chunk_tokens, kv_mib=1024)
    tokens = options.context + options.chunk_tokens
    readers = {name: opened(path, settings, tokens, undivided=name == "one slice") for name in ("slices", "one slice")}
    sliced, whole = readers["slices"], readers["one slice"]
    for number in range(options.pairs + 1):
        pair = [reader.read(options.context) for reader in (sliced, whole)[:: -1 if number % 2 else 1]]
        for _ in zip_longest(*pair):
            pass
        print(number, {name: round(reader.seconds[-1], 3) for name, reader in readers.items()}, flush=True)
        if not number:
            # They found the caches cold.
            for reader in readers.values():
                reader.forget()
    ratios = [a / b for a, b in zip(sliced.seconds, whole.seconds, strict=True)]
    ranked = sorted(sliced.slices)
    result = {
        "command": shlex.join(["bench/slices.py", *sys.argv[1:]]),
        "machine": about | {"load_after": machine()["load_before"]},
        "tokens": tokens,
        "read_s": {name: statistics.median(reader.seconds) for name, reader in readers.items()},
        "samples": {name: reader.seconds for name, reader in readers.items()},
        "cost": statistics.median(ratios) - 1,
        "cost_worst": max(ratios) - 1,
        "slice_ms": {
            "slices": len(ranked),
            "p50": 1000 * place(ranked, 0.5),
            "p99": 1000 * place(ranked, 0.99),
            "max": 1000 * ranked[-1],
            "one slice": 1000 * statistics.median(whole.slices),
        },
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
