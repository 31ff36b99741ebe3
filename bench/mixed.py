#!/usr/bin/env python3
"""Short chats beside long prompts, for minutes, on any OpenAI-compatible server: who waits, and how much gets done.

Eight clients, each of which asks again as soon as it was answered: six with short chats, two with long prompts.  Every
text is new, so that no prefix cache answers for the engine.  Several servers take turns, in rounds whose order is
turned about, so that a machine whose speed drifts treats them alike; one of them is asked at a time.

    bench/mixed.py --policies fifo preempt batch --minutes 5 --out bench/results/mixed.json
    bench/mixed.py --url http://127.0.0.1:8000 --minutes 5

Seconds, of all rounds together: `ttft` from a request sent to its first text, `gap` between two pieces of a text.
`tokens_per_s` are those read (cached ones left out) and written, from a round's begin to its last answer's end: what
was begun in time is waited for.  Its median over the rounds is reported, with all of them.  A request that got an
error, or not all that it asked for, is no figure but an error, and an error fails the run.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from attrs import field, frozen
from contention import Stream, text
from record import machine, server

PAUSE_S = 0.5
"""After an error, so that a server that refuses is not asked a thousand times a second."""


@frozen
class Load:
    """What the clients of one kind ask."""

    name: str
    clients: int
    words: int
    tokens: int


@frozen
class Round:
    """What was seen of one server in one stretch."""

    began: float
    streams: Mapping[str, list[Stream]]
    """By the kind of client."""
    figures: Mapping[str, list[dict[str, Any]]] = field(init=False)

    @figures.default
    def _figures(self) -> Mapping[str, list[dict[str, Any]]]:
        return {kind: [figures_of(stream) for stream in streams] for kind, streams in self.streams.items()}

    def good(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.figures[kind] if "error" not in one]

    @property
    def rates(self) -> dict[str, float]:
        """Tokens a second."""
        good = [one for kind in self.figures for one in self.good(kind)]
        seconds = max((one["end"] for one in good), default=self.began) - self.began
        read, written = sum(one["read"] for one in good), sum(one["tokens"] for one in good)
        if not seconds:
            return {"read": 0.0, "written": 0.0, "both": 0.0}
        return {"read": read / seconds, "written": written / seconds, "both": (read + written) / seconds}


def figures_of(stream: Stream) -> dict[str, Any]:
    """As contention.py has them, with the gaps and the tokens that were read."""
    found: dict[str, Any] = stream.figures()
    if "error" not in found:
        known = (stream.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        found["read"] = stream.usage["prompt_tokens"] - known
    return found


class Client(threading.Thread):
    """Asks one thing after another until the time is over."""

    def __init__(self, url: str, model: str, load: Load, seeds: Iterator[int], until: float) -> None:
        super().__init__(daemon=True)
        self.url, self.model, self.load, self.seeds, self.until = url, model, load, seeds, until
        self.streams: list[Stream] = []

    def run(self) -> None:
        while time.monotonic() < self.until:
            prompt = text(next(self.seeds), self.load.words) + "\nSay something about these words."
            stream = Stream(self.url, self.model, prompt, self.load.tokens, {}, None)
            # Not started: this thread is its own.
            stream.run()
            self.streams.append(stream)
            if stream.error:
                time.sleep(PAUSE_S)


def one_round(url: str, model: str, loads: Iterable[Load], seconds: float, seeds: Iterator[int]) -> Round:
    """All clients at once, for so long and until each has its last answer."""
    began = time.monotonic()
    clients = [Client(url, model, load, seeds, began + seconds) for load in loads for _ in range(load.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    kinds: dict[str, list[Stream]] = {}
    for client in clients:
        kinds.setdefault(client.load.name, []).extend(client.streams)
    return Round(began, kinds)


def spread(values: list[float]) -> dict[str, float]:
    """Nearest rank: each is a value that was seen."""
    ranked = sorted(values)
    places = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: ranked[max(0, math.ceil(share * len(ranked)) - 1)] for name, share in places.items() if ranked}


def summary(rounds: list[Round]) -> dict[str, Any]:
    """One server's figures."""
    rates = [one.rates for one in rounds]
    found: dict[str, Any] = {
        "tokens_per_s": statistics.median(rate["both"] for rate in rates),
        "rates": rates,
        "errors": dict(
            Counter(f["error"] for one in rounds for fs in one.figures.values() for f in fs if "error" in f)
        ),
    }
    for kind in rounds[0].figures:
        good = [figures for one in rounds for figures in one.good(kind)]
        found[kind] = {
            "requests": len(good),
            "prompt_tokens": statistics.mean(one["prompt_tokens"] for one in good) if good else None,
            "ttft": spread([one["ttft"] for one in good]),
            "longest_gap": max((one["max_gap"] for one in good), default=None),
            "gap_p99_median": spread([one["p99_gap"] for one in good]).get("p50"),
            "total": spread([one["total"] for one in good]),
        }
    return found


def measure(servers: Mapping[str, str], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The figures of each server, by its name; `servers` are addresses by name."""
    loads = [
        Load("short", options.short_clients, options.short_words, options.short_tokens),
        Load("long", options.long_clients, options.long_words, options.long_tokens),
    ]
    rounds: dict[str, list[Round]] = {name: [] for name in servers}
    for number in range(options.rounds):
        for name in list(servers)[:: -1 if number % 2 else 1]:
            # The same texts for each server.
            seeds = count((options.seed + number) * 10**6)
            seconds = 60 * options.minutes / options.rounds
            rounds[name].append(one_round(servers[name], options.served_model, loads, seconds, seeds))
            last = rounds[name][-1]
            short = spread([one["ttft"] for one in last.good("short")])
            told = {"round": number + 1, "tokens_per_s": round(last.rates["both"], 1), "short_ttft": short}
            print(name, json.dumps(told), flush=True)
    return {name: summary(seen) for name, seen in rounds.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """What compare_llama.py takes as well."""
    parser.add_argument("--minutes", type=float, default=5, help="for each server, all rounds together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--served-model", default="default", help="the model's name at the API")
    for kind, clients, words, tokens in (("short", 6, 30, 48), ("long", 2, 2500, 64)):
        parser.add_argument(f"--{kind}-clients", type=int, default=clients)
        parser.add_argument(f"--{kind}-words", type=int, default=words)
        parser.add_argument(f"--{kind}-tokens", type=int, default=tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="a server that runs")
    where.add_argument("--policies", nargs="+", help="start `strata serve` with each of these")
    add_options(parser)
    parser.add_argument("--out", type=Path, help="the JSON to write")
    parser.add_argument("server_arguments", nargs="*", help="after --: more flags for strata serve")
    options = parser.parse_args()
    result: dict[str, Any] = {"command": shlex.join(["bench/mixed.py", *sys.argv[1:]]), "machine": machine()}
    with ExitStack() as running:
        if options.url:
            servers = {options.url: options.url}
        else:
            servers = {one: running.enter_context(server(one, options.server_arguments)) for one in options.policies}
        result["servers"] = measure(servers, options)
    print(json.dumps(result["servers"], indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if any(one["errors"] for one in result["servers"].values()) else 0)


if __name__ == "__main__":
    main()
