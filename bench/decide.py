#!/usr/bin/env python3
"""What a decision costs with 10, 1 000 and 100 000 queued: processor time, without an arena and with one.

The crowd is that of tests/scheduling/test_cost.py, which counts what this times: many sizes, one in ten of a higher
priority, pages for a few, and somebody who leaves and another who comes two times in three, so that most decisions
start somebody.

    bench/decide.py --out bench/results/decide.json
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from record import HERE, machine

from strata.scheduling import Decision

sys.path.insert(0, str(HERE.parent / "tests" / "scheduling"))

from test_cost import Crowd


def timed(queued: int, slots: int, decisions: int) -> dict[str, Any]:
    """Microseconds of all decisions, and of those that started somebody."""
    desk = Crowd(queued, slots)
    every: list[float] = []
    starts: list[float] = []

    def decide(now: float) -> Decision:
        begun = time.process_time_ns()
        decision = desk.scheduler.decide(now)
        every.append((time.process_time_ns() - begun) / 1000)
        if decision.opens:
            starts.append(every[-1])
        return decision

    # What collects garbage looks at all that is queued, whoever made it.
    gc.collect()
    gc.freeze()
    desk.decide_often(decide, decisions)
    gc.unfreeze()
    return {"queued": queued, "slots": slots, "all": spread(every), "that start somebody": spread(starts)}


def spread(microseconds: list[float]) -> dict[str, float]:
    cut = quantiles(microseconds, n=100)
    found = {"median_us": median(microseconds), "p99_us": cut[98], "max_us": max(microseconds)}
    return {"decisions": len(microseconds)} | {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--queued", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--slots", type=int, nargs="+", default=[0, 200])
    parser.add_argument("--decisions", type=int, default=3_000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about, runs = machine(), []
    for slots in arguments.slots:
        for queued in arguments.queued:
            runs.append(timed(queued, slots, arguments.decisions))
            print(json.dumps(runs[-1]), flush=True)
    whole = {
        "command": shlex.join(["bench/decide.py", *sys.argv[1:]]),
        "machine": about | {"load_after": machine()["load_before"]},
        "runs": runs,
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
