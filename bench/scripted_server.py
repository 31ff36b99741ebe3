#!/usr/bin/env python3
"""A server whose engine is scripted: what is measured or tried against it is the edge and the actors, not a model.

Prints its address first.  A line on its standard input is answered with one of figures, as JSON; when standard input
ends it is gone, whatever became of who started it.  With `--readers` it has no edge: so many tasks read one answer
each from the runtime, which shows what the rest costs.

    bench/scripted_server.py --step-s 0.02 --set max_running=128 --set max_queued=32
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from strata.config import Settings
from strata.http import create_app, serve
from strata.messages import Open
from strata.runtime import Runtime, open_runtime
from strata.testing import Script, ScriptedEngine
from strata.testing.language import END

FORGET_S = 0.5


class PacedEngine(ScriptedEngine):
    """Its steps keep to a clock of their own, as a device's do: what holds up the loop delays one, not all after it."""

    def __init__(self, **named: Any) -> None:
        self._tick = 0.0
        self.tokens = 0
        super().__init__(**named)

    @property
    def step_s(self) -> float:
        """Until the next tick, which comes `step_s` after the one before."""
        now = trio.current_time()
        self._tick = max(self._tick + self._period, now)
        return self._tick - now

    @step_s.setter
    def step_s(self, seconds: float) -> None:
        self._period = seconds

    async def forget(self) -> None:
        """Keep no record of what ran, which would be taken for the memory of streams."""
        while True:
            self.tokens += sum(len(ran.seqs) for ran in self.log if ran.kind == "step")
            self.log.clear()
            self.told.clear()
            await trio.sleep(FORGET_S)


def alphabet(length: int | None) -> Script:
    """Everybody's answer: letters, so many; None: as many as `max_tokens`."""
    last = math.inf if length is None else length

    def token(_opened: Open, index: int) -> int:
        return END if index >= last else ord("a") + index % 26

    return Script(otherwise=token)


async def main(arguments: argparse.Namespace) -> None:
    engine = PacedEngine(
        script=alphabet(arguments.answer_tokens),
        pages=arguments.pages,
        context=arguments.context,
        slice_s=arguments.slice_s,
        step_s=arguments.step_s,
    )
    settings = Settings.of(port=0, **named(arguments.set))
    async with open_runtime(host=engine, settings=settings) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(engine.forget)
        address = "none"
        if arguments.readers:
            for _ in range(arguments.readers):
                nursery.start_soon(read_one, runtime)
        else:
            (address, *_) = await nursery.start(partial(serve, create_app(runtime), settings.serve))
        print(address, flush=True)
        await answer_lines(runtime, engine)
        nursery.cancel_scope.cancel()


async def read_one(runtime: Runtime) -> None:
    async with runtime.chat([{"role": "user", "content": "go on"}], max_tokens=runtime.model.context // 2) as stream:
        while stream.summary is None:
            await stream.batch()


async def answer_lines(runtime: Runtime, engine: PacedEngine) -> None:
    async with AsyncExitStack() as stack:
        lines = await stack.enter_async_context(trio.lowlevel.FdStream(0))
        async for _ in lines:
            print(json.dumps(figures(runtime, engine)), flush=True)


def figures(runtime: Runtime, engine: PacedEngine) -> dict[str, Any]:
    """Seconds, bytes and counts, of this process since its start."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "at_s": time.monotonic(),
        "cpu_s": time.process_time(),
        "kernel_s": resource.getrusage(resource.RUSAGE_SELF).ru_stime,
        "rss": pages * resource.getpagesize(),
        "tokens": engine.tokens + sum(len(ran.seqs) for ran in engine.log if ran.kind == "step"),
        **attrs.asdict(runtime.statistics()),
    }


def named(pairs: list[str]) -> dict[str, Any]:
    """Settings as `name=value`, the value as JSON where it is some."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answer-tokens", type=int, help="an answer's length; without it max_tokens alone ends it")
    parser.add_argument("--pages", type=int, default=64, help="of 64 tokens")
    parser.add_argument("--context", type=int, help="tokens; without it what the pages hold")
    parser.add_argument("--slice-s", type=float, default=0.001)
    parser.add_argument("--step-s", type=float, default=0.001)
    parser.add_argument("--readers", type=int, default=0, help="tasks that read an answer each, in the edge's place")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the server")
    return parser.parse_args()


if __name__ == "__main__":
    trio.run(main, parsed())
