#!/usr/bin/env python3
"""Strata and llama.cpp's server on the same file, in one run: the peer is the `xllamacpp` wheel (MIT), no dependency.

Install it into an environment of its own, and name that one's Python:

    python3 -m venv /somewhere/peer && /somewhere/peer/bin/pip install xllamacpp
    PEER_PYTHON=/somewhere/peer/bin/python bench/compare_llama.py --mixed --out bench/results/llama.json

Both servers are up, with as many threads and rows, and one is asked at a time; which is first changes with each round.
All figures are a client's, by the same clock and the same client, and tokens are those of `usage`:

  decode   (tokens - 1) / (last text - first text) of an answer after so many tokens of context
  prefill  tokens read / time to the first text, of a prompt whose beginning, of so many tokens, was asked before.
           Both servers know it by their prefix caches; what they say to have had cached counts as not read
  mixed    bench/mixed.py's clients, who take turns at both
"""

from __future__ import annotations

import argparse
import json
import os
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

import mixed
from contention import Stream, text
from record import machine, server

from strata.models.pull import pull_default

HERE = Path(__file__).parent
START_S = 120
STRATA, PEER = "strata", "xllamacpp"
PREFILL_AT, DECODE_AT = (0, 2048, 4096), (0, 4096)
READ_WORDS = 512
"""What is read beyond the context."""
ANSWER = 64
"""Tokens, where decoding is measured."""
FEW = 4
"""Tokens of an answer that is asked for its first one; a single one could be without text."""


@contextmanager
def peer(options: argparse.Namespace) -> Iterator[str]:
    """The peer's address, ready, and gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    numbers = (port, options.threads, options.slots, options.context)
    command = [options.peer_python, str(HERE / "llama_server.py"), str(options.model), *map(str, numbers)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    died = process.poll()
    why = f"it died of {signal.Signals(-died).name}" if died is not None and died < 0 else f"exit code {died}"
    raise SystemExit(f"the peer's server did not get ready: {why}")


def peer_version(python: str) -> dict[str, str]:
    """Its version, and what it computes with."""
    script = "import json, xllamacpp as x; print(json.dumps([x.__version__, x.get_system_info()]))"
    try:
        told = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as problem:
        raise SystemExit(f"{problem}\n\nHow to get the peer:\n{__doc__}") from None
    version, system = json.loads(told.splitlines()[-1])
    return {"version": version, "system": system.strip()}


class Asker:
    """Asks one server for so many tokens of context; a bench client reports every fault, and ends with it."""

    def __init__(self, url: str, words_per_token: float, overhead: float) -> None:
        self.url = url
        self._words_per_token = words_per_token
        self._overhead = overhead

    def words(self, context: int) -> int:
        return max(8, round((context - self._overhead) * self._words_per_token))

    def ask(self, prompt: str, tokens: int) -> dict[str, Any]:
        stream = Stream(self.url, "default", prompt, tokens, {}, None)
        stream.run()
        found = mixed.figures_of(stream)
        if "error" in found:
            raise SystemExit(f"{self.url}: {found['error']}")
        return found

    def one_round(self, seed: int) -> dict[str, dict[str, float]]:
        """Tokens a second and the sizes of prompts, by what was measured."""
        found: dict[str, dict[str, float]] = {}
        for context in sorted({*PREFILL_AT, *DECODE_AT}):
            words = self.words(context)
            if context in DECODE_AT:
                # Of no context: a prompt of its own, so that the one that grows begins with what is measured.
                one = self.ask(text(seed if context else seed + 1, words), ANSWER)
                found[f"decode_{context}"] = {"tokens_per_s": one["rate"], "prompt_tokens": one["prompt_tokens"]}
            elif context:
                self.ask(text(seed, words), FEW)
            if context in PREFILL_AT:
                # The same seed gives the same words, and more of them.
                one = self.ask(text(seed, (words if context else 0) + READ_WORDS), FEW)
                found[f"prefill_{context}"] = {
                    "tokens_per_s": one["read"] / one["ttft"],
                    "prompt_tokens": one["prompt_tokens"],
                    "read": one["read"],
                }
        return found


def size_of_words(url: str) -> tuple[float, float]:
    """Words for each token, and the tokens around them; by asking."""
    probe = Asker(url, 1.0, 0.0)
    small, large = (probe.ask(text(1, words), FEW)["prompt_tokens"] for words in (64, 256))
    return 192 / (large - small), small - 64 * (large - small) / 192


def compared(rounds: dict[str, list[dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """Medians of each, and of their ratios within the rounds."""
    found: dict[str, Any] = {}
    for name in rounds[STRATA][0]:
        rates = {who: [one[name]["tokens_per_s"] for one in rounds[who]] for who in rounds}
        ratios = [a / b for a, b in zip(rates[STRATA], rates[PEER], strict=True)]
        found[name] = {who: statistics.median(values) for who, values in rates.items()}
        found[name] |= {"ratio": statistics.median(ratios), "ratio_worst": min(ratios), "samples": rates}
        found[name]["prompt_tokens"] = {who: [one[name]["prompt_tokens"] for one in rounds[who]] for who in rounds}
        if "read" in rounds[STRATA][0][name]:
            found[name]["read"] = {who: [one[name]["read"] for one in rounds[who]] for who in rounds}
    return found


def unequal(figures: dict[str, Any]) -> list[str]:
    """Where the two did not read the same: then nothing can be compared."""
    return [name for name, one in figures.items() if one["prompt_tokens"][STRATA] != one["prompt_tokens"][PEER]]


def compare_mixed(urls: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = mixed.measure(urls, options)
    mine, theirs = found[STRATA], found[PEER]
    pairs = zip(mine["rates"], theirs["rates"], strict=True)
    found["ratios"] = {
        "tokens_per_s": statistics.median(a["both"] / b["both"] for a, b in pairs),
        "short_ttft_p99": mine["short"]["ttft"]["p99"] / theirs["short"]["ttft"]["p99"],
        "longest_gap": mine["short"]["longest_gap"] / theirs["short"]["longest_gap"],
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer_python = os.environ.get("PEER_PYTHON")
    parser.add_argument(
        "--peer-python",
        default=peer_python,
        required=peer_python is None,
        help="the Python of the environment that has xllamacpp; also as PEER_PYTHON",
    )
    parser.add_argument("--model", type=Path, help="a GGUF file; the default model if none is named")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each server")
    parser.add_argument("--slots", type=int, default=8, help="rows at once, of each server")
    parser.add_argument("--context", type=int, default=8192, help="of each row (tokens)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of decode and prefill; 0: none")
    parser.add_argument("--mixed", action="store_true", help="bench/mixed.py's clients as well")
    parser.add_argument("--out", type=Path, help="the JSON to write")
    mixed.add_options(parser)
    parser.set_defaults(rounds=5)
    options = parser.parse_args()
    options.model = options.model or pull_default()
    result: dict[str, Any] = {
        "command": shlex.join(["bench/compare_llama.py", *sys.argv[1:]]),
        "machine": machine(),
        "model": options.model.name,
        "threads": options.threads,
        "peer": peer_version(options.peer_python),
    }
    own = ["--model", str(options.model), "--threads", str(options.threads), "--max-running", str(options.slots)]
    own += ["--context", str(options.context)]
    with ExitStack() as running:
        urls = {STRATA: running.enter_context(server("batch", own)), PEER: running.enter_context(peer(options))}
        if options.repeats:
            result["alone"] = alone(urls, options)
        if options.mixed:
            result["mixed"] = compare_mixed(urls, options)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    wrong = unequal(result.get("alone", {}))
    if wrong:
        print("prompts have not as many tokens on both:", *wrong)
    sys.exit(1 if wrong or any(result.get("mixed", {}).get(who, {}).get("errors") for who in urls) else 0)


def alone(urls: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Decode and prefill, one request at a time."""
    per_token, overhead = size_of_words(urls[STRATA])
    askers = {who: Asker(url, per_token, overhead) for who, url in urls.items()}
    rounds: dict[str, list[dict[str, dict[str, float]]]] = {who: [] for who in urls}
    for asker in askers.values():
        asker.ask(text(options.seed, 64), FEW)
    for number in range(options.repeats):
        for who in list(urls)[:: -1 if number % 2 else 1]:
            rounds[who].append(askers[who].one_round(options.seed * 1000 + 2 * number))
            told = {name: round(one["tokens_per_s"], 1) for name, one in rounds[who][-1].items()}
            print(who, number + 1, json.dumps(told), flush=True)
    return compared(rounds)


if __name__ == "__main__":
    main()
