#!/usr/bin/env python3
"""Whether a simulated run says what a real one shows: the same 60 requests, once on the engine, once on the cost model.

The cost model is measured right before the real run and again right after it, so that a machine whose speed drifts is
seen to.  A third comparison takes the drift out: the costs before, times what makes the engine's seconds those of the
run, which leaves what the simulator makes of them.  Compared are medians, of all, of short and of long requests: first
token, longest gap, whole answer.

The made-up trace is such that its medians say something: answers are long enough that another request is read beside
most of them, so the median of the longest gaps is what the scheduler makes it, and not how late the slowest of
a hundred lone steps was; and the machine is not near its limit, where a queue makes much of a little.

    bench/simulate_agree.py --out bench/results/simulate-agree.json
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio
from record import machine

from strata.cli.calibrate import calibrate, prompt_of
from strata.config import Settings
from strata.messages import Figures
from strata.models import open_model
from strata.models.pull import pull_default
from strata.runtime import Runtime, open_runtime
from strata.simulate import CostModel, Machine, Run, TraceRequest, generate, simulate

FIGURES = ("ttft_s", "longest_gap_s", "total_s")
SECONDS = ("slice_s", "slice_row_s", "slice_row_position_s", "step_row_position_s")
ALLOWED = 0.15


async def replay(requests: Sequence[TraceRequest], path: Path, settings: Settings) -> list[Figures]:
    """What each request took on the real engine."""
    file = open_model(path)
    prompts = [prompt_of(file, request.input_length) for request in requests]
    found: dict[int, Figures] = {}
    async with open_runtime(path, settings=settings) as runtime:
        await ask(runtime, prompts[0], 4)  # a cold machine is not what is measured
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for at, request in enumerate(requests):
                await trio.sleep_until(began + request.timestamp / 1000)
                nursery.start_soon(note, runtime, prompts[at], request.output_length, found, at)
    return [found[at] for at in range(len(requests))]


async def note(runtime: Runtime, prompt: str, tokens: int, found: dict[int, Figures], at: int) -> None:
    found[at] = await ask(runtime, prompt, tokens)
    print(f"{len(found)} have ended", end="\r", file=sys.stderr, flush=True)


async def ask(runtime: Runtime, prompt: str, tokens: int) -> Figures:
    messages = [{"role": "user", "content": prompt}]
    async with runtime.chat(messages, max_tokens=tokens, ignore_eos=True, temperature=0) as stream:
        async for _ in stream:
            pass
    assert stream.summary is not None
    return stream.summary.figures


def medians(columns: dict[str, list[float]], short: list[bool]) -> dict[str, float]:
    classes = {"all": [True] * len(short), "short": short, "long": [not one for one in short]}
    return {
        f"{name} {figure}": statistics.median(v for v, chosen in zip(values, wanted, strict=True) if chosen)
        for name, wanted in classes.items()
        if any(wanted)
        for figure, values in columns.items()
    }


def compare(real: dict[str, float], run: Run, short: list[bool], engine_s: float) -> dict[str, Any]:
    simulated = medians({figure: list(getattr(run, figure)) for figure in FIGURES}, short)
    ratios = {name: round(simulated[name] / value, 3) for name, value in real.items() if value}
    assert run.statistics is not None
    return {
        "simulated": {name: round(value, 4) for name, value in simulated.items()},
        "simulated_over_real": ratios,
        "within_15_percent": {name: abs(ratio - 1) <= ALLOWED for name, ratio in ratios.items()},
        "engine_s_simulated_over_real": round(run.statistics.engine_s / engine_s, 3),
    }


def scaled(cost: CostModel, factor: float) -> CostModel:
    times = {name: factor * getattr(cost, name) for name in SECONDS}
    steps = {rows: factor * seconds for rows, seconds in cost.step_s.items()}
    return msgspec.structs.replace(cost, step_s=steps, **times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--kind", default="chat", help="of made-up traffic")
    parser.add_argument("--per-s", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="batch")
    parser.add_argument("--longest", type=int, default=1500, help="longer prompts of the made-up trace are cut to this")
    parser.add_argument("--answers", type=float, default=3.0, help="times what the made-up trace lets them write")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    # The made-up prompts begin alike and the answers repeat themselves: what is known or guessed costs nothing.
    settings = Settings.of(policy=arguments.policy, prefix_cache=False, speculate=0)
    path, about = pull_default(), machine()
    made = generate(arguments.kind, arguments.requests, seed=arguments.seed, per_s=arguments.per_s)
    wanted = [
        TraceRequest(
            one.timestamp, min(one.input_length, arguments.longest), round(arguments.answers * one.output_length)
        )
        for one in made
    ]
    before = calibrate(path, settings, print)
    loads = [os.getloadavg()]
    figures = trio.run(replay, wanted, path, settings)
    loads.append(os.getloadavg())
    after = calibrate(path, settings, print)
    trace = [
        TraceRequest(one.timestamp, of.prompt_tokens, of.written_tokens)
        for one, of in zip(wanted, figures, strict=True)
    ]
    rules = settings.scheduler
    short = [one.input_length + one.output_length <= rules.short_tokens for one in trace]
    real = medians({figure: [getattr(of, figure) for of in figures] for figure in FIGURES}, short)
    engine_s = sum(of.engine_s for of in figures)

    def under(cost: CostModel) -> dict[str, Any]:
        return compare(real, simulate(trace, rules, Machine(cost, pages=1024)), short, engine_s)

    run = simulate(trace, rules, Machine(before, pages=1024))
    assert run.statistics is not None
    factor = engine_s / run.statistics.engine_s
    whole = {
        "command": shlex.join(["bench/simulate_agree.py", *sys.argv[1:]]),
        "machine": about,
        "load_before_and_after_the_real_run": loads,
        "requests": {"all": len(trace), "short": sum(short), "prompt_tokens": sum(one.input_length for one in trace)},
        "real": {name: round(value, 4) for name, value in real.items()},
        "real_engine_s": round(engine_s, 1),
        "costs_measured_before": under(before),
        "costs_measured_after": under(after),
        "costs_scaled_to_the_run": under(scaled(before, factor)) | {"factor": round(factor, 3)},
    }
    print(json.dumps(whole, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
