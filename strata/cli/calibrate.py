"""Times a model's slices and decode steps on this machine, for `strata simulate --calibrate`.

A room of its own because here alone a real engine meets the simulator, which knows none.  The model is served as ever,
to clients of this process, and what the engine says is overheard.  A step costs what it takes until the next one, with
what scheduler, actors and clients do meanwhile, and not what it takes in an empty house.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import trio
from attrs import define, field

from strata.config import SchedulerSettings, Settings
from strata.engine.host import Deliver, EngineHost
from strata.engine.make_host import make_host
from strata.messages import ChatMessage, ChunkRead, Decoded, FromEngine, Progress, Ready, ToEngine
from strata.models.file import ModelFile, OpenedOnce
from strata.runtime import Runtime, open_runtime
from strata.simulate.cost import CostModel
from strata.simulate.fit import Shape, SliceSample, StepSample, fit

PROMPTS: Final = (24, 160, 256, 512, 1600)
"""Prompts to read (tokens), each alone; cut to what the context leaves."""
TIMES: Final = 3
"""Each of them is read so many times."""
ROWS: Final = (1, 2, 4, 8)
GROUPS: Final = ((40, 8), (700, 4))
"""Tokens before the rows that are decoded, and how many of those there are at most."""
STEPS: Final = 48
"""Tokens of an answer; those count that all of a group write together."""
BLOCK: Final = 8
"""Steps that are timed together: who hears of them may hear two at once."""


def calibrate(path: Path, settings: Settings, say: Callable[[str], None]) -> CostModel:
    """A minute on the default model.  Raises ModelError, ConfigError."""
    model = OpenedOnce(path)
    # What hinders that is said before anything else is.
    model()
    # What a step takes is measured, by its rows: none may be offered beside those that are asked for, nobody waits for
    # a row, and what is known costs nothing.
    settings = attrs.evolve(
        settings,
        engine=attrs.evolve(settings.engine, speculate=0),
        scheduler=SchedulerSettings(
            max_running=max(ROWS), chunk_tokens=settings.engine.chunk_tokens, prefix_cache=False
        ),
    )
    return trio.run(_calibrate, model, settings, say)


async def _calibrate(model: OpenedOnce, settings: Settings, say: Callable[[str], None]) -> CostModel:
    file = model()
    host = Overheard(file, make_host(model, settings, None, 1))
    async with open_runtime(host=host, settings=settings) as runtime:
        clients = _Clients(file, runtime, host)
        # The first pass finds the caches cold, and is not counted.
        await clients.read(64)
        say(f"reading {len(PROMPTS)} prompts")
        chunks = [chunk for prompt in PROMPTS for chunk in await clients.read(prompt)]
        say("decoding " + ", ".join(str(rows) for rows in ROWS) + " rows")
        steps = [sample for context, most in GROUPS for sample in await clients.write(context, most)]
        on = f"{file.name} ({file.quantisation}) on {host.device}"
        return fit(on, _shape(chunks, file.config.layers), [chunk.sample() for chunk in chunks], steps)


class Overheard:
    """An engine's host, and what the engine said, each with the time at which it was heard."""

    def __init__(self, file: ModelFile, host: EngineHost) -> None:
        self.tokenizer = file.tokenizer
        self.template = file.template
        self.device = ""
        self.heard: list[tuple[float, FromEngine]] = []
        self._host = host

    def __repr__(self) -> str:
        return f"<Overheard {self._host!r}, {len(self.heard)} facts>"

    def tell(self, message: ToEngine) -> None:
        self._host.tell(message)

    async def run(self, deliver: Deliver, *, task_status: trio.TaskStatus[Ready] = trio.TASK_STATUS_IGNORED) -> None:
        def overhear(fact: FromEngine) -> None:
            self.heard.append((trio.current_time(), fact))
            deliver(fact)

        async with trio.open_nursery() as nursery:
            ready = await nursery.start(self._host.run, overhear)
            self.device = ready.device
            task_status.started(ready)

    def take(self) -> list[tuple[float, FromEngine]]:
        """What was heard since the last call."""
        heard, self.heard = self.heard, []
        return heard


@define
class _Chunk:
    """One that was read."""

    start: int
    end: int
    layers: int
    taken: list[float] = field(factory=list)
    """By slice, from the one before it on (seconds)."""
    slices: int = 1

    def sample(self) -> SliceSample:
        rows = _computed(self.end - self.start) * self.layers / self.slices
        return SliceSample(rows, (self.start + self.end) / 2, sum(self.taken) / len(self.taken))


class _Clients:
    """Those who ask a runtime, and what it takes."""

    def __init__(self, file: ModelFile, runtime: Runtime, host: Overheard) -> None:
        self._file = file
        self._runtime = runtime
        self._host = host

    async def read(self, prompt: int) -> list[_Chunk]:
        """Each chunk of the prompt that took neither longest nor least of TIMES."""
        await trio.lowlevel.checkpoint()
        passes = []
        for _ in range(TIMES):
            await self._ask([min(prompt, self._runtime.model.context // 2)], 1)
            passes.append(list(_chunks(self._host.take(), self._file.config.layers)))
        return [sorted(same, key=lambda chunk: sum(chunk.taken))[TIMES // 2] for same in zip(*passes, strict=True)]

    async def write(self, context: int, most: int) -> list[StepSample]:
        """Samples of steps of more and more rows, each of them after so many tokens."""
        await trio.lowlevel.checkpoint()
        context = min(context, self._runtime.model.context // 2)
        answer = min(STEPS, self._runtime.model.context // 2)
        samples: list[StepSample] = []
        for rows in ROWS:
            if rows <= most:
                length = await self._ask([context] * rows, answer)
                samples += _steps(self._host.take(), rows, rows * (length + answer // 2))
        return samples

    async def _ask(self, prompts: Sequence[int], answer: int) -> int:
        """All at once; how many tokens the last one really was."""
        lengths = []

        async def one(prompt: str) -> None:
            messages = [{"role": "user", "content": prompt}]
            async with self._runtime.chat(messages, max_tokens=answer, ignore_eos=True, temperature=0) as stream:
                await stream.text()
            assert stream.summary is not None
            lengths.append(stream.summary.figures.prompt_tokens)

        async with trio.open_nursery() as nursery:
            for prompt in prompts:
                nursery.start_soon(one, prompt_of(self._file, prompt))
        return lengths[-1]


def prompt_of(file: ModelFile, tokens: int) -> str:
    """A text that is so many tokens once it stands in the model's template; a few more where it can't be fewer."""

    def length(words: int) -> int:
        text = file.template.render([ChatMessage("user", " a" * words)])
        return len(file.tokenizer.encode(text))

    words = max(1, tokens - length(1) + 1)
    return " a" * (words + tokens - length(words) if tokens > length(1) else 1)


def _chunks(heard: Sequence[tuple[float, FromEngine]], layers: int) -> Iterator[_Chunk]:
    """From what was said of one prompt; its first slice took what the engine says."""
    before, start, slices, taken = None, 0, 0, list[float]()
    for at, fact in heard:
        if not isinstance(fact, Progress | ChunkRead):
            continue
        slices += 1
        taken.append(fact.seconds if before is None else at - before)
        before = at
        if isinstance(fact, ChunkRead):
            yield _Chunk(start, fact.position, layers, taken, slices)
            start, slices, taken = fact.position, 0, []


def _steps(heard: Sequence[tuple[float, FromEngine]], rows: int, positions: int) -> Iterator[StepSample]:
    """Of the steps that all took part in, if there were enough of them: the median."""
    together = [at for at, fact in heard if isinstance(fact, Decoded) and len(fact.rows) == rows and fact.seconds]
    blocks = [(after - before) / BLOCK for before, after in pairwise(together[::BLOCK])]
    if blocks:
        yield StepSample(rows, positions, median(blocks))


def _shape(chunks: Sequence[_Chunk], layers: int) -> Shape:
    """How many rows a slice has: those of the largest chunk, by the number of its slices."""
    from strata.cpu.kernels import TILE

    largest = max(chunks, key=lambda chunk: chunk.end - chunk.start)
    tiles, stretches = _computed(largest.end - largest.start) // TILE, largest.slices // layers
    return Shape(layers, -(-tiles // stretches) * TILE, TILE)


def _computed(tokens: int) -> int:
    """Rows of whole tiles."""
    from strata.cpu.kernels import TILE

    return -(-tokens // TILE) * TILE
