#!/usr/bin/env python3
"""What it costs to draw tokens, beside taking the likeliest one: the same questions, answered in both ways by turns.

In the caller's process, and with nothing offered (`speculate` 0), so that a step writes one token of each answer.

    bench/drawing.py --rounds 5 --out bench/results/drawing.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import trio
from record import machine

import strata
from strata.runtime import Runtime

LIKELIEST = "likeliest"
WAYS: dict[str, dict[str, float]] = {
    LIKELIEST: {"temperature": 0},
    "temperature 1": {"temperature": 1.0},
    "temperature 1, top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "temperature 0.7, top_k 40, top_p 0.9": {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
}
ROWS = (1, 8)


async def rate(runtime: Runtime, rows: int, tokens: int, way: dict[str, float]) -> float:
    """Tokens a second of so many answers at once, from the first text of any to the end of all."""
    heard: list[float] = []

    async def answer(number: int) -> None:
        question = [{"role": "user", "content": f"Tell me a story of {number + 2} friends."}]
        async with runtime.chat(question, max_tokens=tokens, ignore_eos=True, seed=number, **way) as stream:
            heard.extend([time.perf_counter() async for _ in stream])

    async with trio.open_nursery() as nursery:
        for number in range(rows):
            nursery.start_soon(answer, number)
    return rows * tokens / (max(heard) - min(heard))


async def measure(rounds: int, tokens: int) -> dict[tuple[str, int], list[float]]:
    rates: dict[tuple[str, int], list[float]] = {(way, rows): [] for rows in ROWS for way in WAYS}
    async with strata.open_runtime(speculate=0, max_running=max(ROWS)) as runtime:
        for number in range(-1, rounds):
            for way, rows in list(rates)[:: -1 if number % 2 else 1]:
                found = await rate(runtime, rows, tokens, WAYS[way])
                if number >= 0:  # the first round warms up
                    rates[way, rows].append(found)
            print(
                number + 1,
                {f"{way} ({rows})": round(all[-1], 1) for (way, rows), all in rates.items() if all},
                flush=True,
            )
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100, help="of each answer")
    parser.add_argument("--out", type=Path, help="the JSON to write")
    options = parser.parse_args()
    about = machine()
    rates = trio.run(measure, options.rounds, options.tokens)
    result: dict[str, Any] = {
        "command": shlex.join(["bench/drawing.py", *sys.argv[1:]]),
        "machine": about,
        "rows": [
            {
                "way": way,
                "answers_at_once": rows,
                "tokens_per_s": statistics.median(samples),
                "ratio": statistics.median(a / b for a, b in zip(samples, rates[LIKELIEST, rows], strict=True)),
                "samples": samples,
            }
            for (way, rows), samples in rates.items()
        ],
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
