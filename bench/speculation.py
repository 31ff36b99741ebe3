#!/usr/bin/env python3
"""How much faster an answer is written that says again what its prompt said, by offering tokens from the prompt.

Servers that offer more and fewer tokens take turns at the same requests, each to repeat a passage word for word.
Decode speed is a client's: (tokens - 1) / (last text - first text).  All must write the same.  How many answers are
the passage's own words is counted; what was offered and what of it was right is what the servers count.

    bench/speculation.py --rounds 10 --out bench/results/speculation.json
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from record import machine, server

COUNTERS = {
    "offered": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
}


PASSAGES = (
    "The harbor was quiet in the early morning. Three small boats lay at the wooden pier, and an old man was "
    "mending a net beside them. A girl came down the hill with a basket of bread. She gave him a loaf, sat down "
    "on the stones and watched the gulls over the water until the bells of the church began to ring.",
    "Our train left the city at noon and followed the river for an hour. The fields on both sides were yellow, "
    "and here and there a farmer stood beside his cart and looked up as we passed. In the evening we came to the "
    "mountains, and the air was cold enough that everybody put on a coat before supper.",
    "To plant a young tree, dig a hole that is twice as wide as its roots and no deeper. Loosen the soil at the "
    "bottom, set the tree upright in the middle and fill the hole with the same soil. Press it down with your "
    "foot, pour a bucket of water over it, and tie the stem to a strong stake for the first two years.",
    "The meeting of the town council began at seven. The mayor read a letter about the old bridge, which must be "
    "closed for repairs in the spring. Two shop owners asked who would pay for the work, and a teacher wanted to "
    "know how the children would come to school. A decision will be made in the first week of March.",
    "A lighthouse keeper writes down the weather four times a day. He notes the wind, the height of the waves and "
    "every ship that passes, and at night he looks after the lamp. In winter nobody can reach him for weeks, so "
    "his cellar is full of flour, beans and oil, and a shelf beside his bed is full of books.",
)


def prompt_of(number: int) -> str:
    return f"Repeat this text word for word:\n\n{PASSAGES[number % len(PASSAGES)]}"


def counted(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode()
    return {
        name: sum(map(float, re.findall(rf"^{re.escape(counter)}(?:{{.*}})? (\S+)$", lines, re.MULTILINE)))
        for name, counter in COUNTERS.items()
    }


def ask(url: str, prompt: str, tokens: int) -> tuple[float, str]:
    """Tokens a second, and the text."""
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {"model": "default", "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    pieces: list[str] = []
    arrivals: list[float] = []
    written = 0
    with urllib.request.urlopen(asked, timeout=600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if piece:
                pieces.append(piece)
                arrivals.append(time.monotonic())
            written = (event.get("usage") or {}).get("completion_tokens", written)
    if written != tokens:
        raise SystemExit(f"{url} wrote {written} tokens, and {tokens} were asked for")
    return (tokens - 1) / (arrivals[-1] - arrivals[0]), "".join(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="each with the next of the passages")
    parser.add_argument("--tokens", type=int, default=60, help="of each answer; the passages have a few more")
    parser.add_argument(
        "--speculate", type=int, nargs="+", default=[0, 3, 7], help="tokens that are offered; 0 is first"
    )
    parser.add_argument("--out", type=Path, help="the JSON to write")
    options = parser.parse_args()
    about = machine()
    with ExitStack() as running:
        servers = {n: running.enter_context(server("batch", ["--speculate", str(n)])) for n in options.speculate}
        rates: dict[int, list[float]] = {most: [] for most in servers}
        quoted = 0
        for number in range(options.rounds):
            texts = {}
            for most in list(servers)[:: -1 if number % 2 else 1]:
                # Twice, and the second counts: the first has the prompt to read.
                ask(servers[most], prompt_of(number), options.tokens)
                rate, texts[most] = ask(servers[most], prompt_of(number), options.tokens)
                rates[most].append(rate)
            if len(set(texts.values())) > 1:
                raise SystemExit(f"they wrote different texts: {texts}")
            quoted += PASSAGES[number % len(PASSAGES)].startswith(texts[options.speculate[0]].strip())
            print(number + 1, {most: round(rate[-1], 1) for most, rate in rates.items()}, flush=True)
        counts = {most: counted(url) for most, url in servers.items()}
    base = rates[options.speculate[0]]
    result: dict[str, Any] = {
        "command": shlex.join(["bench/speculation.py", *sys.argv[1:]]),
        "machine": about,
        "answers": options.rounds,
        "answers_that_quote_to_their_end": quoted,
        "by_speculate": {
            most: {
                "tokens_per_s": statistics.median(rate),
                "ratio": statistics.median(a / b for a, b in zip(rate, base, strict=True)),
                "samples": rate,
                **counts[most],
            }
            for most, rate in rates.items()
        },
    }
    print(json.dumps(result, indent=1))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
