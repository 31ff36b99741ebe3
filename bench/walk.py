#!/usr/bin/env python3
"""The long walk of the scheduler, recorded: histories under pressure, every decision held against the rules.

The histories are those of tests/scheduling/test_long_walk.py, one a seed, from the first on.  What was seen is kept in
the result as it goes on, so the same command goes on where it was stopped, as long as the code is the same.  A history
that breaks a promise ends it with that history's number.

    bench/walk.py --steps 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from record import HERE, machine

sys.path.insert(0, str(HERE.parent / "tests" / "scheduling"))

from test_long_walk import walk
from watched_desk import WatchedDesk

KEEP_EVERY_S = 20.0
WALKED = (
    "strata/scheduling",
    *(
        f"tests/scheduling/{name}.py"
        for name in ("model_engine", "desk", "watched_desk", "test_walk", "test_long_walk")
    ),
)
HELD = (
    "each page has one owner, or is shared and read only; what is held, free, cached and reserved adds up",
    "all that have started can still end, whatever they ask for (the banker's test)",
    "who is in a step has all its pages on the device; who runs keeps them",
    "at most max_running rows, one of them reading",
    "never idle with work to do, and never idle for ever",
    "a displacement has a reason whose conditions held, and comes after at least one slice",
    "age pays one quantum, to one of a priority at a time",
    "suspects of an engine's death run alone until they are past the point",
    "no purse is above its burst or below what may run over",
    "at most 2 N + 2 pages move without a slice or a step between, while somebody could run",
    "asking twice says nothing new",
    "a request's figures add up to its time, and tell how many are before it",
    "no token is lost or sent twice, and each request ends once",
    "at the end of a history every page and every slot is free",
)


def git(*words: str) -> str:
    told = subprocess.run(["git", *words], cwd=HERE.parent, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def code() -> list[str]:
    """Git's names of what is walked, and of what walks it; nothing if it isn't what was committed."""
    changed = git("status", "--porcelain", "--", *WALKED)
    return [] if changed else git("rev-parse", *(f"HEAD:{path}" for path in WALKED)).split()


def seen_in(desk: WatchedDesk) -> Counter[str]:
    now = desk.scheduler.statistics(desk.now)
    seen = Counter({"histories": 1, "steps": desk.engine.ran, "step messages": now.steps, "requests": len(desk.asked)})
    seen.update({"pages moved": now.pages_out + now.pages_in, "tokens cached": now.cached_tokens})
    seen.update({f"parked: {reason}": number for reason, number in now.parks.items()})
    seen.update({f"ended: {outcome}": number for outcome, number in now.ended.items()})
    return seen


def before(out: Path, walked: list[str]) -> dict[str, Any]:
    """What an earlier run of the same code has kept, if any."""
    kept: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return kept if walked and kept.get("code") == walked else {}


def go_on(out: Path, steps: int) -> dict[str, Any]:
    walked = code()
    report = before(out, walked)
    seen = Counter(report.get("seen", {}))
    seconds, worked = report.get("seconds", 0.0), report.get("processor_seconds", 0.0)
    began, used, written = time.monotonic(), time.process_time(), 0.0
    while seen["steps"] < steps:
        seen += seen_in(walk(seen["histories"]))
        if time.monotonic() - written > KEEP_EVERY_S or seen["steps"] >= steps:
            report = {
                "command": shlex.join(["bench/walk.py", *sys.argv[1:]]),
                "commit": git("rev-parse", "HEAD"),
                "code": walked,
                "machine": machine() | {"nice": os.nice(0)},
                "whole": seen["steps"] >= steps,
                "steps": seen["steps"],
                "histories": seen["histories"],
                "seconds": round(seconds + time.monotonic() - began, 1),
                "processor_seconds": round(worked + time.process_time() - used, 1),
                "held_at_every_decision": HELD,
                "seen": dict(sorted(seen.items())),
            }
            out.write_text(json.dumps(report, indent=1) + "\n")
            written = time.monotonic()
            print(f"{seen['steps']} steps, {seen['histories']} histories", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "long-walk.json")
    arguments = parser.parse_args()
    print(json.dumps(go_on(arguments.out, arguments.steps), indent=1))


if __name__ == "__main__":
    main()
