"""Traffic that is made up: chats, agents, or both.  Draws from a seed; knows no engine and no policy.

Chats are short and come one by one.  An agent comes back again and again with all that was said so far, so its prompts
are long and grow, and its turns follow each other as fast as its tools answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from heapq import merge
from itertools import islice
from typing import Final

from strata.simulate.trace import TraceRequest

CONTEXT: Final = 8192
"""No request is longer than this: what the default model was trained for."""
AGENTS_SHARE: Final = 0.25
"""Of the requests of mixed traffic."""


def generate(kind: str, requests: int, *, seed: int, per_s: float) -> list[TraceRequest]:
    """So many requests, `per_s` of them a second on average.  The same arguments give the same trace."""
    draw = random.Random(f"{kind} {seed}")
    return KINDS[kind](draw, requests, per_s)


def _chat(draw: random.Random, requests: int, per_s: float) -> list[TraceRequest]:
    now, made = 0.0, []
    for _ in range(requests):
        now += draw.expovariate(per_s)
        made.append(_request(now, draw.lognormvariate(5.0, 0.8), draw.lognormvariate(4.4, 0.6)))
    return made


def _agents(draw: random.Random, requests: int, per_s: float) -> list[TraceRequest]:
    """Sessions that overlap, each of about TURNS turns."""
    turns = 8.0
    made: list[TraceRequest] = []
    now = 0.0
    while len(made) < 2 * requests:
        now += draw.expovariate(per_s / turns)
        made += _session(draw, now, 1 + int(draw.expovariate(1 / (turns - 0.5))))
    # Sessions that began long before the end are all there; the last ones are cut.
    return sorted(made, key=lambda request: request.timestamp)[:requests]


def _session(draw: random.Random, now: float, turns: int) -> list[TraceRequest]:
    made, said = [], draw.lognormvariate(6.9, 0.5)
    for _ in range(turns):
        if said > CONTEXT - 512:
            break
        wrote = draw.lognormvariate(4.1, 0.7)
        made.append(_request(now, said, wrote))
        said += wrote + draw.lognormvariate(5.8, 0.9)
        now += 2.0 + draw.expovariate(0.25)
    return made


def _mixed(draw: random.Random, requests: int, per_s: float) -> list[TraceRequest]:
    agents = round(requests * AGENTS_SHARE)
    long = _agents(draw, agents, per_s * AGENTS_SHARE) if agents else []
    chats = _chat(draw, requests - agents, per_s * (1 - AGENTS_SHARE))
    return list(islice(merge(long, chats, key=lambda request: request.timestamp), requests))


def _request(now: float, prompt: float, answer: float) -> TraceRequest:
    written = min(512, max(1, round(answer)))
    read = min(CONTEXT - written, max(8, round(prompt)))
    return TraceRequest(timestamp=float(round(now * 1000)), input_length=read, output_length=written)


KINDS: Final[Mapping[str, Callable[[random.Random, int, float], list[TraceRequest]]]] = {
    "agents": _agents,
    "chat": _chat,
    "mixed": _mixed,
}
