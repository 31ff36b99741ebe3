"""How long a message takes to the engine and its fact back, on a thread and in a process of its own.

    python bench/host_round_trip.py [--rounds 2000] [--out bench/results/round-trip.json]

An idle engine is told an empty step, which it takes at once: what is measured is the way there and back, from `tell` to
the fact in the Trio thread, without any work.  Three rounds of each host, alternating; the least of a host's medians is
the one that the machine disturbed least.  The exit code is 1 if one of these is above 200 us.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from strata.config import Settings
from strata.engine.host import EngineHost, ThreadHost
from strata.engine.process_host import ProcessHost
from strata.engine.spec import file_engine
from strata.messages import FromEngine, Step, Stop, Took
from strata.testing.tiny_model import write_tiny_model

ROUNDS = 3
ALLOWED_US = 200


async def round_trips(host: EngineHost, count: int) -> list[float]:
    """Seconds, each."""
    took = trio.Event()

    def hear(fact: FromEngine) -> None:
        if isinstance(fact, Took):
            took.set()

    seconds = []
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run, hear)
        for n in range(1, count + 1):
            took = trio.Event()
            began = time.perf_counter()
            host.tell(Step(n))
            await took.wait()
            seconds.append(time.perf_counter() - began)
        host.tell(Stop())
    # The first ones find the caches cold.
    return seconds[count // 10 :]


def figures(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return {"median_us": round(cuts[49] * 1e6, 1), "p95_us": round(cuts[94] * 1e6, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000, help="round trips of each measurement")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    before = os.getloadavg()
    with TemporaryDirectory() as folder:
        spec = file_engine(write_tiny_model(Path(folder) / "tiny.gguf"), Settings.of(threads=1, kv_mib=16))
        hosts: dict[str, Callable[[], EngineHost]] = {
            "thread": partial(ThreadHost, spec.build),
            "process": partial(ProcessHost, spec),
        }
        runs = [
            (name, figures(trio.run(round_trips, make(), asked.rounds)))
            for _ in range(ROUNDS)
            for name, make in hosts.items()
        ]
    found = {name: [run for which, run in runs if which == name] for name in hosts}
    for name, measured in found.items():
        print(f"{name:8}", *(f"median {run['median_us']:7.1f} us, p95 {run['p95_us']:7.1f} us;" for run in measured))
    least = {name: min(run["median_us"] for run in measured) for name, measured in found.items()}
    well = max(least.values()) <= ALLOWED_US
    result = {
        "command": shlex.join(["bench/host_round_trip.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
        "load_average": {"before": before, "after": os.getloadavg()},
        "well": well,
        "least_median_us": least,
        "runs": found,
    }
    if asked.out is not None:
        asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
