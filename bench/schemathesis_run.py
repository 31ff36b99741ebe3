#!/usr/bin/env python3
"""Thousands of requests that schemathesis makes from our OpenAPI document, against a server with a scripted engine.

Half of them are as the document says, half break it.  Every answer must be one that the document knows: no 5xx, no
connection cut without an answer, body, events and content type by their schemas, a refusal for what breaks the rules.
`positive_data_acceptance` is left out: what fits the schema and not this model, or isn't served yet, is refused.

    bench/schemathesis_run.py --cases 100000

The rounds differ by their seed, so that each can be had again.  Ends at `--max-minutes`, whatever was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE / "results" / "schemathesis.json"
EXAMPLES = 2000
"""Of the chat route in one round; routes with a name in their path get a tenth, and the others one each."""
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = {refusals}
[generation]
max-examples = {few}
[[operations]]
include-path = "/v1/chat/completions"
generation = {{ max-examples = {many} }}
"""
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""What is no acceptance of a body that breaks the rules: schemathesis' own list, and 413,
for one that is too large too.  A 5xx is found by a check of its own."""
PHASES = "coverage,fuzzing"
ROUND_TIMEOUT_S = 1800
LINE = 3000
STORAGE = HERE.parent / ".hypothesis"
"""Where Hypothesis keeps which characters there are.  In a folder that is new each time every round would work that out
again, which takes longer than its cases do."""


@contextmanager
def scripted_server() -> Iterator[str]:
    """Answers are a few tokens long, and a context is small: what counts is the edge."""
    command = [sys.executable, str(HERE / "scripted_server.py"), "--answer-tokens", "5", "--context", "1024"]
    command += ["--slice-s", "0.0002", "--step-s", "0.0002"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(30)


def one_round(address: str, seed: int, examples: int, folder: Path) -> dict[str, Any]:
    """What schemathesis reports of one run."""
    report, config = folder / f"{seed}.json", folder / "schemathesis.toml"
    config.write_text(CONFIG.format(many=examples, few=max(1, examples // 10), refusals=json.dumps(REFUSALS)))
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)]
    command += ["run", f"{address}/openapi.json", "--phases", PHASES, "--seed", str(seed), "--continue-on-failure"]
    command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--request-timeout", "30"]
    command += ["--generation-database", "none", "--warnings", "off", "--no-color"]
    command += ["--report", "json", "--report-json-path", str(report)]
    here = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(STORAGE)}
    done = subprocess.run(
        command, cwd=folder, env=here, capture_output=True, text=True, timeout=ROUND_TIMEOUT_S, check=False
    )
    if not report.exists():
        raise SystemExit(f"schemathesis failed\n{done.stdout}\n{done.stderr}")
    told: dict[str, Any] = json.loads(report.read_text())
    if done.returncode:
        # Of a line that repeats a whole body, its beginning.
        told["output"] = "\n".join(line[:LINE] for line in done.stdout.splitlines())
    return told


def rounds(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Until there are enough cases, or the time is up.  As many at once as there are processors."""
    end = time.monotonic() + arguments.max_minutes * 60
    at_once = len(os.sched_getaffinity(0))
    done, seed = 0, arguments.seed
    with scripted_server() as address, tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        while done < arguments.cases and time.monotonic() < end:
            seeds = range(seed, seed + at_once)
            seed += at_once
            for told in pool.map(lambda n: one_round(address, n, arguments.examples, Path(folder)), seeds):
                done += told["test_cases"]["generated"]
                print(f"{done} cases", told["test_cases"], told["failures"], flush=True)
                yield told


def summed(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Those that fit the schema are told by operation; the others broke it, in body, path or method."""
    cases, operations = Counter[str](), Counter[str]()
    for each in told:
        cases.update(each["test_cases"])
        for operation, phases in each["valid_rates"].items():
            operations[operation] += sum(sum(counts.values()) for counts in phases.values())
    return {
        "cases": dict(cases),
        "seeds": [each["seed"] for each in told],
        "fitting_by_operation": dict(operations.most_common()),
        "failures": [failure for each in told for failure in each["failures"]],
        "errors": [error for each in told for error in each["errors"]],
        "output_of_failed": [each["output"][:20_000] for each in told if "output" in each],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=2000, help="at least so many")
    parser.add_argument("--max-minutes", type=float, default=60, help="no new round begins after this")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="of the chat route in one round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()
    told = list(rounds(arguments))
    result = {
        "command": shlex.join(["bench/schemathesis_run.py", *sys.argv[1:]]),
        "schemathesis": version("schemathesis"),
        "python": platform.python_version(),
        "processors_usable": len(os.sched_getaffinity(0)),
        "load_before": load,
        "seconds": round(time.monotonic() - began, 1),
        **summed(told),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "output_of_failed"}, indent=1))
    sys.exit(1 if result["failures"] or result["errors"] or result["cases"]["generated"] < arguments.cases else 0)


if __name__ == "__main__":
    main()
