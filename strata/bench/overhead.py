"""What the runtime costs beside the engine: the time between slices and steps against the time in them.

The engine says of every slice and step how long it took; here it is noted when each was heard of.  While the engine
has work all the time, what is left of the wall's time is the runtime's.  Steps shorter than the way from the engine
(some tenths of a millisecond) come several at a time, and can't be told apart by this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio
from attrs import frozen

from strata.bench.asking import Asker
from strata.bench.device import device_name
from strata.bench.report import Column, Report
from strata.config import Settings
from strata.engine.host import Deliver, EngineHost
from strata.engine.make_host import make_host
from strata.messages import ChunkRead, Decoded, FromEngine, Progress, Ready, ToEngine
from strata.models.file import OpenedOnce
from strata.runtime import open_runtime
from strata.simulate.report import Spread

ANSWER: Final = 128
"""Tokens of each answer: enough steps that it makes no difference how soon the first and the last are heard of."""
ROWS: Final = (1, 8)

COLUMNS: Final = (
    Column("arm", "the engine"),
    Column("steps", "steps", ",d"),
    Column("engine_ms", "engine (ms)", ",.3f"),
    Column("wall_ms", "wall (ms)", ",.3f"),
    Column("overhead_percent", "runtime (%)", ",.2f", drawn=True),
    Column("p50_ms", "p50 (ms)", ",.2f"),
    Column("p99_ms", "p99 (ms)", ",.2f", drawn=True),
)


@frozen
class Heard:
    """One slice or step."""

    at: float
    seconds: float
    """Engine time."""
    is_read: bool


class Watched:
    """A host that notes what its engine says of time, and passes everything on."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._heard: list[Heard] = []

    def tell(self, message: ToEngine) -> None:
        self._host.tell(message)

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        def note(fact: FromEngine) -> None:
            if isinstance(fact, Progress | ChunkRead | Decoded) and fact.seconds:
                self._heard.append(Heard(time.perf_counter(), fact.seconds, not isinstance(fact, Decoded)))
            deliver(fact)

        await self._host.run(note, task_status=task_status)

    def take(self) -> list[Heard]:
        """All since the last call."""
        heard, self._heard = self._heard, []
        return heard


async def overhead(path: Path, settings: Settings, repeats: int, say: Callable[[str], None]) -> Report:
    """A long prompt, one answer and several at once, so many times each.  Raises ModelError, ConfigError."""
    model = OpenedOnce(path)
    file = await trio.to_thread.run_sync(model)
    host = Watched(make_host(model, settings, None, 1))
    found: dict[str, list[list[Heard]]] = {}
    async with open_runtime(path, settings=settings, host=host) as runtime:
        asker = Asker(runtime)
        await asker.measure_words()
        host.take()
        for number in range(repeats):
            say(f"round {number + 1} of {repeats}")
            await _read(asker)
            found.setdefault("reads", []).append([one for one in host.take() if one.is_read])
            for rows in ROWS:
                await _write(asker, rows)
                found.setdefault(f"decodes, {rows} at once", []).append(_after_reading(host.take()))
        return Report(
            what=f"overhead (engine in a {settings.hosting.engine_host or 'thread'})",
            model=f"{file.name} ({file.quantisation})",
            device=device_name(settings.engine),
            repeats=repeats,
            columns=COLUMNS,
            rows=tuple(row(arm, [run for run in runs if len(run) > 1]) for arm, runs in found.items()),
        )


async def _read(asker: Asker) -> None:
    async with asker.long() as stream:
        await stream.text()


async def _write(asker: Asker, rows: int) -> None:
    async def one() -> None:
        async with asker.short(ANSWER) as stream:
            await stream.text()

    async with trio.open_nursery() as nursery:
        for _ in range(rows):
            nursery.start_soon(one)


def _after_reading(heard: Sequence[Heard]) -> list[Heard]:
    """The steps after all prompts are read."""
    last = max((at for at, one in enumerate(heard) if one.is_read), default=-1)
    return list(heard[last + 1 :])


def row(arm: str, runs: Sequence[Sequence[Heard]]) -> Mapping[str, Any]:
    """Each run is a stretch in which the engine always had work; its first slice began before it was looked at."""
    if not runs:
        return dict.fromkeys(column.key for column in COLUMNS) | {"arm": arm, "samples": []}
    engine = [sum(one.seconds for one in run[1:]) / (len(run) - 1) for run in runs]
    wall = [(run[-1].at - run[0].at) / (len(run) - 1) for run in runs]
    shares = [100 * (w - e) / e for w, e in zip(wall, engine, strict=True)]
    spread = Spread.of(one.seconds for run in runs for one in run)
    return {
        "arm": arm,
        "steps": sum(len(run) for run in runs),
        "engine_ms": 1000 * median(engine),
        "wall_ms": 1000 * median(wall),
        "overhead_percent": median(shares),
        "p50_ms": 1000 * spread.p50,
        "p99_ms": 1000 * spread.p99,
        "samples": shares,
    }
