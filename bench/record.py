#!/usr/bin/env python3
"""Runs contention.py against `strata serve`, once for each policy, and keeps the figures.

One server for each policy stays up and their rounds alternate, so that a machine whose speed drifts treats them
alike.  The JSON says which command made it, and on what.

    bench/record.py --policies fifo batch --rounds 5 --long-words 1500
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_TIMEOUT_S = 120


@contextmanager
def server(policy: str, arguments: list[str]) -> Iterator[str]:
    """The address of a `strata serve` of its own, ready, and gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "strata", "serve", "--policy", policy, "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"strata serve did not get ready (exit code {process.poll()})")


def one_round(url: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One round of every arm, as contention.py reports it."""
    result = HERE / "results" / ".round.json"
    command = [sys.executable, str(HERE / "contention.py"), "--url", url, "--rounds", "1", "--seed", str(seed)]
    command += ["--long-words", str(arguments.long_words), "--json", str(result)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    report: dict[str, Any] = json.loads(result.read_text())
    result.unlink()
    return report


ARMS = ("reading", "decoding")
FIGURES = ("B_ttft", "B_ttft_over_alone", "wait_removed", "long_penalty", "A_max_gap", "pair_rate")


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, and the worst where worse has a direction."""
    out: dict[str, Any] = {
        "rounds": len(rounds),
        "errors": [error for report in rounds for error in report["errors"]],
        "short_alone_ttft": statistics.median(report["short_alone_ttft"] for report in rounds),
        "long_read": statistics.median(report["long_read"] for report in rounds),
        "decode_rate_alone": statistics.median(report["decode_rate_alone"] for report in rounds),
    }
    for arm in ARMS:
        rows = [report[arm] for report in rounds if report[arm]["rounds"]]
        out[arm] = {name: statistics.median(row[name] for row in rows) for name in FIGURES} if rows else {}
        if rows:
            out[arm]["B_ttft_over_alone_worst"] = max(row["B_ttft_over_alone"] for row in rows)
            out[arm]["wait_removed_worst"] = min(row["wait_removed"] for row in rows)
            out[arm]["long_penalty_worst"] = max(row["long_penalty"] for row in rows)
    return out


def machine() -> dict[str, Any]:
    model = next(
        (x.split(":", 1)[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?"
    )
    return {
        "processor": model,
        "processors_usable": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_before": os.getloadavg(),
        "OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policies", nargs="+", default=["fifo", "batch"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long-words", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("server_arguments", nargs="*", help="after --: more flags for strata serve")
    arguments = parser.parse_args()
    about = machine()
    reports: dict[str, list[dict[str, Any]]] = {policy: [] for policy in arguments.policies}
    with ExitStack() as servers:
        urls = {policy: servers.enter_context(server(policy, arguments.server_arguments)) for policy in reports}
        for i, policy in itertools.product(range(arguments.rounds), reports):
            reports[policy].append(one_round(urls[policy], arguments.seed + i, arguments))
            ratios = {arm: reports[policy][-1][arm].get("B_ttft_over_alone") for arm in ARMS}
            print(policy, i + 1, json.dumps(ratios), flush=True)
    for policy, rounds in reports.items():
        result = {"command": shlex.join(["bench/record.py", *sys.argv[1:]]), "policy": policy, "machine": about}
        result |= summary(rounds) | {"raw": rounds}
        (arguments.out / f"contention-{policy}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(policy, json.dumps({k: v for k, v in result.items() if k != "raw"}, indent=1))
    sys.exit(1 if any(report["errors"] for rounds in reports.values() for report in rounds) else 0)


if __name__ == "__main__":
    main()
