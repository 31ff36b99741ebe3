"""A runtime over a scripted engine, for tests in virtual time, and the few things that they do with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio
from attrs import define, field

from strata.messages import Close, Open, Step, Summary
from strata.runtime import Runtime, Stream, open_runtime
from strata.testing import Fault, RowFault
from strata.testing.language import PlainTemplate
from strata.testing.scripted import ScriptedEngine

CHUNK = 64
SLICES = 4
FRAME = len(PlainTemplate().render([])) + len("user: \n")
"""What the template puts around one message (tokens)."""


class Engines:
    """A scripted engine for each incarnation; `faults` are each one's own, the last ones' are none."""

    def __init__(
        self, *faults: Iterable[Fault | RowFault], starts: Callable[[int], Any] = lambda _n: None, **named: Any
    ) -> None:
        self.made: list[ScriptedEngine] = []
        self.settings: dict[str, Any] = {"pages": 64, "page_tokens": 16, **named}
        self._faults = faults
        self._starts = starts

    def __call__(self, incarnation: int) -> ScriptedEngine:
        self._starts(incarnation)
        faults = self._faults[incarnation - 1] if incarnation <= len(self._faults) else ()
        made = ScriptedEngine(
            chunk_tokens=CHUNK, slices_per_chunk=SLICES, incarnation=incarnation, faults=faults, **self.settings
        )
        self.made.append(made)
        return made


@define
class Scene:
    runtime: Runtime
    engine: ScriptedEngine
    ended: list[str] = field(factory=list)
    """Names in the order in which their answers were complete."""
    texts: dict[str, str] = field(factory=dict)
    summaries: dict[str, Summary] = field(factory=dict)

    async def ask(self, name: str, tokens: int, max_tokens: int, *, at: float = 0.0, **named: Any) -> None:
        """Ask with a prompt of so many tokens at this time, and read the answer to its end."""
        await trio.sleep_until(at)
        named.setdefault("temperature", 0)
        async with self.chat(name, tokens, max_tokens, **named) as stream:
            self.texts[name] = await stream.text()
            assert stream.summary is not None
            self.summaries[name] = stream.summary
            self.ended.append(name)

    def chat(self, name: str, tokens: int, max_tokens: int, **named: Any) -> Any:
        """A prompt of exactly so many tokens, which begins with the name."""
        content = name.ljust(tokens - FRAME, ".")
        assert len(content) + FRAME == tokens
        return self.runtime.chat([{"role": "user", "content": content}], max_tokens=max_tokens, **named)

    def opened(self) -> list[int]:
        return [told.seq for told in self.engine.told if isinstance(told, Open)]

    def steps_after_close(self, seq: int) -> list[Step]:
        """The steps that the engine was told after it was told to forget the sequence."""
        told = self.engine.told
        closed = next(n for n, message in enumerate(told) if isinstance(message, Close) and message.seq == seq)
        return [message for message in told[closed:] if isinstance(message, Step)]

    def is_empty(self) -> bool:
        """Whether no request holds anything, here or in the engine."""
        now = self.runtime.statistics()
        waiting = now.queued + now.reading + now.parked + now.decoding + now.pages_held
        kinds = sorted(info.kind for info in self.runtime.tree())
        return waiting == 0 and kinds == ["dispatcher", "engine", "runtime"]


@asynccontextmanager
async def scripted(engine: ScriptedEngine | Engines | None = None, **settings: Any) -> AsyncIterator[Scene]:
    """Chunks of 64 tokens in 4 slices of 10 ms; steps of 10 ms.  The scene's engine is the first."""
    engine = engine or ScriptedEngine(chunk_tokens=CHUNK, slices_per_chunk=SLICES, pages=256, page_tokens=16)
    async with open_runtime(host=engine, chunk_tokens=CHUNK, page_tokens=16, **settings) as runtime:
        yield Scene(runtime, engine.made[0] if isinstance(engine, Engines) else engine)


async def read_some(stream: Stream, deltas: int) -> str:
    """The text of the next few deltas."""
    return "".join([(await anext(stream)).text for _ in range(deltas)])
