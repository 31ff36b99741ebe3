"""How soon a newer step is followed: from telling an engine that reads a long prompt to decode a row, to its token.

The engine is told by hand, through its host, as a dispatcher would: no scheduler, no reading of the row itself and
no client are in the figures.  What was begun is not taken back: the rest of a slice, or of what a card was told ahead.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from operator import eq
from pathlib import Path
from typing import Any, Final

import trio

from strata.actors.kernel.faults import lone
from strata.bench.asking import LONG_TOKENS
from strata.bench.report import Column, Report
from strata.bench.throughput import VOCABULARY
from strata.config import Settings
from strata.engine.host import EngineHost
from strata.engine.make_host import make_host
from strata.errors import ConfigError, EngineUnavailable
from strata.messages import (
    Close,
    Decoded,
    EngineDied,
    FromEngine,
    Grant,
    Open,
    Progress,
    Ready,
    Sampling,
    Seq,
    SeqFailed,
    Step,
    Stop,
    Wants,
)
from strata.models.file import OpenedOnce
from strata.simulate.report import Spread

TURNS: Final = 16
"""Rows that are decoded once each while a prompt is read, all along it; and as many while nothing else is."""

COLUMNS: Final = (
    Column("arm", "from telling to a token"),
    Column("times", "times", ",d"),
    Column("p50_ms", "p50 (ms)", ",.2f", drawn=True),
    Column("worst_ms", "worst (ms)", ",.2f", drawn=True),
)

ALONE, READING, SLICES = "while nothing else runs", "while a prompt is read", "a slice of that prompt, to compare"


async def newer_step(path: Path, settings: Settings, repeats: int, say: Callable[[str], None]) -> Report:
    """So many prompts.  Raises ModelError, ConfigError, DeviceMissing, EngineUnavailable."""
    model = OpenedOnce(path)
    file = await trio.to_thread.run_sync(model)
    host = make_host(model, settings, None, 1)
    found: dict[str, list[float]] = {ALONE: [], READING: [], SLICES: []}
    try:
        with Talk(host) as talk:
            async with trio.open_nursery() as nursery:
                ready = await nursery.start(host.run, talk.hear)
                turns = Turns(talk, ready)
                # A device loads its kernels as they are first needed.
                await turns.alone()
                for number in range(repeats):
                    say(f"prompt {number + 1} of {repeats}")
                    found[ALONE] += await turns.alone()
                    waited, slices = await turns.while_reading()
                    found[READING] += waited
                    found[SLICES] += slices
                host.tell(Stop())
    except BaseExceptionGroup as group:
        raise lone(group) from None
    return Report(
        what=f"newer step (engine in a {settings.hosting.engine_host or 'thread'})",
        model=f"{file.name} ({file.quantisation})",
        device=ready.device,
        repeats=repeats,
        columns=COLUMNS,
        rows=tuple(_row(arm, seconds) for arm, seconds in found.items()),
    )


def _row(arm: str, seconds: Sequence[float]) -> Mapping[str, Any]:
    spread = Spread.of(seconds) if seconds else None
    return {
        "arm": arm,
        "times": len(seconds),
        "p50_ms": spread and 1000 * spread.p50,
        "worst_ms": spread and 1000 * spread.max,
        "samples": [1000 * one for one in seconds],
    }


class Talk:
    """What an engine is told, and what it says, each with the moment at which that was heard."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._steps = count(1)
        self.written: set[Seq] = set()
        """Who has tokens, as far as it was heard."""
        self._said, self._heard = trio.open_memory_channel[tuple[float, FromEngine]](math.inf)

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._said.close()
        self._heard.close()

    def hear(self, fact: FromEngine) -> None:
        self._said.send_nowait((time.perf_counter(), fact))
        if isinstance(fact, Decoded):
            self.written |= {row.seq for row in fact.rows}

    def tell(self, *messages: Open | Grant | Close) -> None:
        for message in messages:
            self._host.tell(message)

    def step(self, *decode: Seq, read: Seq | None = None) -> float:
        """The moment at which it was told."""
        told = time.perf_counter()
        self._host.tell(Step(next(self._steps), decode, read))
        return told

    async def until(self, wanted: Callable[[FromEngine], bool]) -> tuple[float, FromEngine]:
        """The next fact of that kind.  Raises EngineUnavailable where there can be none."""
        while True:
            at, fact = await self._heard.receive()
            if isinstance(fact, EngineDied):
                raise EngineUnavailable(f"the engine died: {fact.reason}")
            if isinstance(fact, SeqFailed):
                raise EngineUnavailable(f"a sequence failed: {fact.error}")
            if wanted(fact):
                return at, fact


class Turns:
    """Rows that are ready to be decoded, once each, and prompts that are being read when they are."""

    def __init__(self, talk: Talk, ready: Ready) -> None:
        self._talk = talk
        self._names = map(Seq, count(1))
        self._dice = random.Random(1)
        self._page, self._chunk = ready.page_tokens, ready.chunk_tokens
        if ready.context < self._page + 2:
            raise ConfigError("context", f"it is too small for what is measured: {self._page + 2} tokens are needed")
        rows = min(TURNS, ready.pages // 4)
        self._pages = [(2 * row, 2 * row + 1) for row in range(rows)]
        """Of each row: its prompt fills the first, and its answer is to be written to the second."""
        self._rest = tuple(range(2 * rows, ready.pages))
        self._long = min(LONG_TOKENS, ready.context // 2, len(self._rest) * self._page - 1)

    async def alone(self) -> list[float]:
        return [await self._turn(seq) for seq in await self._ready()]

    async def while_reading(self) -> tuple[list[float], list[float]]:
        """Seconds that each row waited, and those of the slices in between."""
        rows, seq = await self._ready(), next(self._names)
        self._open(seq, self._long, self._rest, answer=1)
        waited: list[float] = []
        slices: list[float] = []
        for number, row in enumerate(rows, 1):
            self._talk.step(read=seq)
            found = await self._reads_on(seq, number / (len(rows) + 1))
            if not found:
                break
            slices += found
            # Somewhere in the next slice.
            await trio.sleep(self._dice.random() * found[-1])
            waited.append(await self._turn(row))
        for left in (seq, *rows[len(waited) :]):
            self._talk.tell(Close(left))
        return waited, slices

    async def _reads_on(self, seq: Seq, share: float) -> list[float]:
        """Until so much of it is read; seconds of its slices, but for those that end a chunk.  None: all is read."""
        slices: list[float] = []
        await trio.lowlevel.checkpoint()
        # Its end may have been heard while a row was waited for.
        while seq not in self._talk.written:
            _, fact = await self._talk.until(lambda fact: isinstance(fact, Progress) or _has_row(seq, fact))
            if isinstance(fact, Progress):
                slices.append(fact.seconds)
                chunks = -(-self._long // self._chunk)
                if (fact.chunk + fact.done / fact.total) / chunks >= share:
                    return slices
        return []

    async def _turn(self, seq: Seq) -> float:
        """Seconds from telling that it is to be decoded to its token."""
        told = self._talk.step(seq)
        heard, _ = await self._talk.until(partial(_has_row, seq))
        self._talk.step()
        self._talk.tell(Close(seq))
        return heard - told

    async def _ready(self) -> list[Seq]:
        """Rows whose prompt is read and whose first token is there; they stand for want of a page, and then have it."""
        await trio.lowlevel.checkpoint()
        seqs = [next(self._names) for _ in self._pages]
        for seq, (first, second) in zip(seqs, self._pages, strict=True):
            self._open(seq, self._page, (first,), answer=2)
            self._talk.step(read=seq)
            await self._talk.until(partial(eq, Wants(seq)))
            self._talk.step()
            self._talk.tell(Grant(seq, (second,)))
        return seqs

    def _open(self, seq: Seq, tokens: int, pages: tuple[int, ...], *, answer: int) -> None:
        prompt = tuple((31 * at + seq) % VOCABULARY for at in range(tokens))
        sampling = Sampling(temperature=0.0, ignore_eos=True, max_tokens=answer)
        self._talk.tell(Open(seq, prompt, sampling), Grant(seq, pages))


def _has_row(seq: Seq, fact: FromEngine) -> bool:
    return isinstance(fact, Decoded) and any(row.seq == seq for row in fact.rows)
