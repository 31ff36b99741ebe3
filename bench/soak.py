#!/usr/bin/env python3
"""Three long conversations and short requests beside them, for minutes: what is remembered, what waits, what grows.

    bench/soak.py --minutes 20 --out bench/results/soak.json

One `strata serve`, whose pages are all used once before anything is measured.  Each conversation grows turn by turn;
facts are planted in it and asked for later.  Short requests come at random meanwhile, and before, on the idle server.
Afterwards every question is asked again on the idle server with the history that it had: a fact is lost where the idle
answer holds it and the loaded one did not, and no answer may differ by a byte.  The exit code is 1 if anything was
lost, differs, or grows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import trio
from attrs import define, field, frozen
from chaos import Server, machine, make_client, serving, sum_of, until_ready

IDLE_ASKS = 15
FILL_WORDS = 1500
"""Of a prompt that is there to use pages."""
WARM = 0.1
"""The share of the time after which memory is measured first."""
GROWS = 1.1
"""What resident memory may be of what it was then."""
TOPICS = ("rivers", "bridges", "winter", "letters", "gardens", "engines", "markets", "harbors", "stones", "signals")
COLOURS = ("red", "blue", "green", "white", "black", "brown", "yellow", "purple")

Message = dict[str, str]


@frozen
class Question:
    """A fact that was asked for, with all that was said before."""

    conversation: int
    history: tuple[Message, ...]
    fact: str
    answer: str


@define
class Record:
    """What was seen."""

    turns: int = 0
    conversations: int = 0
    longest: int = 0
    """Tokens of a prompt."""
    errors: Counter[str] = field(factory=Counter)
    questions: list[Question] = field(factory=list)
    lost_prefixes: int = 0
    """Turns that had to read again what the turn before them had read."""
    short_s: list[float] = field(factory=list)
    idle_s: list[float] = field(factory=list)


@frozen
class Answer:
    text: str
    first_s: float
    """Seconds to the first token."""
    prompt: int
    cached: int
    """Tokens of the prompt, and of them those that were known."""


class Soak:
    def __init__(self, server: Server, client: httpx.AsyncClient, options: argparse.Namespace) -> None:
        self.server = server
        self.client = client
        self.options = options
        self.record = Record()
        self.dice = random.Random(options.seed)
        self.end = 0.0

    async def run(self) -> dict[str, Any]:
        await until_ready(self.client, self.server)
        await self.use_all_pages()
        for _ in range(IDLE_ASKS):
            await self.short(self.record.idle_s)
        seconds = self.options.minutes * 60
        self.end = time.monotonic() + seconds
        memory: list[int] = []
        async with trio.open_nursery() as nursery:
            for n in range(self.options.talks):
                nursery.start_soon(self.talk, n)
            nursery.start_soon(self.interrupt)
            await trio.sleep(seconds * WARM)
            memory.append(self.resident())
        memory.append(self.resident())
        return await self.summary(memory)

    async def summary(self, memory: list[int]) -> dict[str, Any]:
        record = self.record
        metrics = (await self.client.get("/metrics")).text
        right, wrong, differ = await self.compare()
        idle, loaded = _quantiles(record.idle_s), _quantiles(record.short_s)
        return {
            "conversations": record.conversations,
            "turns": record.turns,
            "longest_prompt_tokens": record.longest,
            "short_requests": len(record.short_s),
            "errors": dict(record.errors),
            "parks": sum_of(metrics, "strata_parks_total{"),
            "resumes": sum_of(metrics, "strata_resumes_total{"),
            "facts": {"asked": len(record.questions), "idle_right": right + wrong, "told": right, "lost": wrong},
            "answers_that_differ": differ,
            "lost_prefixes": record.lost_prefixes,
            "short_ttft_s": loaded,
            "short_ttft_idle_s": idle,
            "short_ttft_over_idle": {name: round(loaded[name] / idle["median"], 2) for name in loaded},
            "resident_mib": [round(size / 2**20, 1) for size in memory],
            "grown": round(memory[-1] / memory[0], 3),
        }

    async def use_all_pages(self) -> None:
        """Memory is reserved at the start, and becomes resident when it is used first."""
        metrics = (await self.client.get("/metrics")).text
        tokens = sum_of(metrics, "strata_pages{") * self.options.page_tokens
        while tokens > 0:
            words = " ".join(self.dice.choice(TOPICS) for _ in range(FILL_WORDS))
            tokens -= (await self.stream([{"role": "user", "content": words}], 1)).prompt

    # -- those who talk ---------------------------------------------------------------------------------------------

    async def talk(self, number: int) -> None:
        """A conversation until the time is over; a new one where it grew too long for the context."""
        dice = random.Random(self.options.seed * 100 + number)
        while time.monotonic() < self.end:
            await self.converse(dice)

    async def converse(self, dice: random.Random) -> None:
        history: list[Message] = []
        facts: dict[str, str] = {}
        known = 0
        self.record.conversations += 1
        number = self.record.conversations
        while time.monotonic() < self.end:
            asked, text = self.next_turn(dice, facts)
            history.append({"role": "user", "content": text})
            answer = await self.ask(history, self.options.answer_tokens)
            if answer is None:
                return
            self.record.turns += 1
            # The prompt before is the beginning of this one; what is not of a whole page is read again.
            self.record.lost_prefixes += answer.cached < known - 2 * self.options.page_tokens
            known = answer.prompt
            self.record.longest = max(self.record.longest, known)
            if asked is not None:
                self.record.questions.append(Question(number, tuple(history), facts[asked], answer.text))
            history.append({"role": "assistant", "content": answer.text})
            if answer.prompt > self.options.longest:
                return

    def next_turn(self, dice: random.Random, facts: dict[str, str]) -> tuple[str | None, str]:
        """Plant a fact, ask for one, or just talk."""
        free = [colour for colour in COLOURS if colour not in facts]
        kind = dice.random()
        if free and (kind < 0.3 or not facts):
            colour = dice.choice(free)
            facts[colour] = str(dice.randint(1000, 9999))
            return None, f"Remember this: the number of the {colour} box is {facts[colour]}. Say OK."
        if kind < 0.6:
            colour = dice.choice(sorted(facts))
            return colour, f"What is the number of the {colour} box?"
        return None, f"Tell me something about {dice.choice(TOPICS)}, in a few sentences."

    async def interrupt(self) -> None:
        while time.monotonic() < self.end:
            await trio.sleep(self.dice.uniform(0.5, 3.0))
            await self.short(self.record.short_s)

    async def short(self, into: list[float]) -> None:
        question = f"Name one thing that is {self.dice.choice(COLOURS)} ({self.dice.randint(0, 999)})."
        answer = await self.ask([{"role": "user", "content": question}], 8)
        if answer is not None:
            into.append(answer.first_s)

    # -- asking -----------------------------------------------------------------------------------------------------

    async def ask(self, history: list[Message], most: int) -> Answer | None:
        try:
            return await self.stream(history, most)
        except (httpx.HTTPError, ValueError) as error:
            self.record.errors[str(error)[:80] or type(error).__name__] += 1
            await trio.sleep(1)
            return None

    async def stream(self, history: list[Message], most: int) -> Answer:
        body = {"messages": history, "max_tokens": most, "temperature": 0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        asked, first, text, usage = time.monotonic(), 0.0, "", {}
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                raise ValueError((await answer.aread()).decode())
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ValueError(event["error"]["message"])
                usage = event.get("usage") or usage
                piece = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                first = first or (time.monotonic() if piece else 0.0)
                text += piece
        details = usage.get("prompt_tokens_details") or {}
        return Answer(
            text, (first or time.monotonic()) - asked, usage["prompt_tokens"], details.get("cached_tokens", 0)
        )

    async def compare(self) -> tuple[int, int, int]:
        """Of the facts that the idle server knows, how many were told under load, and how many not; and how many
        answers differ."""
        right = wrong = differ = 0
        # One conversation after the other, so that little is read twice.
        for question in sorted(self.record.questions, key=lambda question: question.conversation):
            idle = await self.stream(list(question.history), self.options.answer_tokens)
            differ += idle.text != question.answer
            if question.fact in idle.text:
                right += question.fact in question.answer
                wrong += question.fact not in question.answer
        return right, wrong, differ

    def resident(self) -> int:
        """Bytes, of the server and its engine's process."""
        pids = [self.server.process.pid, *self.server.engines()]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return pages * os.sysconf("SC_PAGE_SIZE")


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    picked = {"median": 0.5, "p95": 0.95, "max": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 4) for name, q in picked.items() if ordered
    }


async def one(options: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--page-tokens", str(options.page_tokens), "--kv-mib", str(options.kv_mib), "--arena-mib", "64"]
    with serving([*arguments, *options.arguments], options.log) as server:
        async with make_client(server.url) as client:
            return await Soak(server, client, options).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--talks", type=int, default=3)
    parser.add_argument("--answer-tokens", type=int, default=48)
    parser.add_argument(
        "--longest", type=int, default=4000, help="prompt tokens after which a conversation begins anew"
    )
    parser.add_argument("--page-tokens", type=int, default=64)
    parser.add_argument("--kv-mib", type=int, default=768, help="room for the conversations and little more")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=None, help="a file for what the server says")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("arguments", nargs="*", help="for strata serve, after --")
    options = parser.parse_args()
    before = os.getloadavg()
    found = trio.run(one, options)
    lost = found["errors"] or found["facts"]["lost"] or found["lost_prefixes"] or found["answers_that_differ"]
    well = not lost and found["grown"] <= GROWS
    result = {
        "command": shlex.join(["bench/soak.py", *sys.argv[1:]]),
        "machine": machine(),
        "load_average": {"before": before, "after": os.getloadavg()},
        "well": well,
        **found,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
