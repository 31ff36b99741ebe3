#!/usr/bin/env python3
"""How fast the simulator is: a million small requests, and a hundred thousand of the Mooncake traces' shape.

Small: prompts of one or two chunks and answers of 64 tokens.  The shape of a Mooncake trace (its "tool and agent"
one): prompts of 8 600 tokens on average, lognormal, up to 100 000, and answers of 180.  They come at random, at a rate
that keeps the engine busy for the share of the time that is named.  Each run is in two halves, each on a processor
of its own where the trace can be cut; `processor_seconds` are of both.  The JSON says what made it, and on what.

    bench/simulate_speed.py --load 0.5 0.9
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import resource
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from record import machine

from strata.config import Settings
from strata.simulate import CostModel, Machine, TraceRequest, laptop, read_cost, simulate
from strata.simulate.halves import simulate_in_halves

HERE = Path(__file__).parent


def small(draw: random.Random) -> tuple[int, int]:
    return draw.randint(64, 1024), 64


def mooncake(draw: random.Random) -> tuple[int, int]:
    return min(100_000, max(16, int(draw.lognormvariate(8.6, 0.95)))), min(2000, int(draw.lognormvariate(4.7, 1.0)) + 1)


SHAPES = {"small": (small, 1_000_000), "mooncake": (mooncake, 100_000)}


def trace(shape: str, requests: int, load: float, cost: CostModel, chunk_tokens: int) -> list[TraceRequest]:
    draw = random.Random(shape)
    sizes = [SHAPES[shape][0](draw) for _ in range(requests)]
    seen = sizes[:2000]
    alone = sum(cost.read_seconds(read, chunk_tokens) + cost.write_seconds(read, wrote) for read, wrote in seen)
    now, made = 0.0, []
    for read, wrote in sizes:
        now += draw.expovariate(load * len(seen) / alone)
        made.append(TraceRequest(now * 1000, read, wrote))
    return made


def worked_s() -> float:
    """Processor time, of the second half's process too once it has ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def one(shape: str, load: float, policy: str, scale: float, cost: CostModel, *, profiled: bool) -> dict[str, Any]:
    rules = Settings.of(policy=policy, max_queued=10_000, max_queued_tokens=10**9).scheduler
    requests = trace(shape, round(SHAPES[shape][1] * scale), load, cost, rules.chunk_tokens)
    longest = max(request.input_length + request.output_length for request in requests)
    profile = cProfile.Profile()
    began, worked = time.perf_counter(), worked_s()
    if profiled:
        profile.enable()
    go = simulate if profiled else simulate_in_halves
    run = go(requests, rules, Machine(cost, pages=rules.max_running * (longest // 64 + 1)))
    profile.disable()
    took, worked = time.perf_counter() - began, worked_s() - worked
    if profiled:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    assert run.statistics is not None
    return {
        "shape": shape,
        "requests": len(requests),
        "policy": policy,
        "load": load,
        "seconds": round(took, 1),
        "processor_seconds": round(worked, 1),
        "microseconds_a_request": round(1e6 * took / len(requests), 1),
        "refused": run.refused,
        "step_messages": run.statistics.steps,
        "parks": dict(run.statistics.parks),
        "simulated_days": round(run.ended_at / 86400, 2),
        "busy": round(run.statistics.engine_s / run.ended_at, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--load", nargs="+", type=float, default=[0.5])
    parser.add_argument("--policy", nargs="+", default=["batch"])
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--model-cost", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cost = laptop() if arguments.model_cost is None else read_cost(arguments.model_cost)
    about, results = machine(), []
    for shape in arguments.shape:
        for load in arguments.load:
            for policy in arguments.policy:
                results.append(one(shape, load, policy, arguments.scale, cost, profiled=arguments.profile))
                print(json.dumps(results[-1]), flush=True)
    whole = {
        "command": shlex.join(["bench/simulate_speed.py", *sys.argv[1:]]),
        "machine": about | {"load_after": machine()["load_before"]},
        "cost": cost.measured_on,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "runs": results,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
