#!/usr/bin/env python3
"""Kills the engine of a real server again and again under mixed load, and counts what is lost or left behind.

    bench/chaos.py --kills 200 --departures 2000 --deaths replay --out bench/results/chaos-replay.json

One `strata serve` for each way of taking an engine's death (`replay`, `fail`), its engine in a process of its own, the
limit on restarts raised, and so few pages that some move to the arena.  What each request gets undisturbed is asked
first; then clients of two priorities ask at random and some leave at random, while the engine's process gets SIGKILL,
at times before it is up.  Afterwards: what every stream got against what it would have got, who hung, and what the
server still holds: pages, arena, workspaces, actors, tasks, threads, children, files.  The exit code is 1 if anything
is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import trio
from attrs import define, field, frozen

START_S = 300
HANGS_S = 120
"""A client that heard nothing for so long hangs: a server that lives says where it stands every 10 s."""
LONGEST_S = 1800
"""So does one that got no end for so long, however often its engine was killed."""
SETTLES_S = 60
"""Idle worker threads end after 10 s."""
LOADING = 0.2
"""Share of the kills that meet an engine before it is up."""
TIGHT = ["--max-running", "4", "--chunk-tokens", "128", "--kv-mib", "40", "--arena-mib", "64", "--max-priority", "1"]
"""Settings under which all states of a request are met."""
URGENT = ("short", "talk")
"""What the others make way for."""
WORDS = ("river", "stone", "market", "signal", "garden", "copper", "winter", "engine", "letter", "bridge", "harbor")


@frozen
class Ask:
    """One kind of request."""

    name: str
    body: dict[str, Any]


def asks(long_words: int) -> list[Ask]:
    """Short and long prompts, greedy and seeded, short and long answers."""
    sizes = {"short": (8, 12), "talk": (60, 48), "long": (long_words, 16), "writer": (20, 120)}
    found = []
    for name, (words, most) in sizes.items():
        content = " ".join(WORDS[n * 5 % len(WORDS)] for n in range(words)) + f" ({name})"
        chat = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": most,
            "ignore_eos": True,
            "stream": True,
            "priority": int(name in URGENT),
        }
        found.append(Ask(f"{name}, greedy", {**chat, "temperature": 0}))
        found.append(Ask(f"{name}, seeded", {**chat, "temperature": 0.8, "seed": words}))
    return found


class Server:
    """A running `strata serve`."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def engines(self) -> list[int]:
        """The processes that it has started and that run."""
        return [
            int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == self.process.pid
        ]

    def holds(self) -> dict[str, int]:
        """What a server that does nothing may not hold more of than before."""
        own = Path(f"/proc/{self.process.pid}")
        return {
            "files": len(list((own / "fd").iterdir())),
            "threads": len(list((own / "task").iterdir())),
            "children": len(self.engines()),
        }


def _parent(stat: Path) -> int:
    """Of a process that may have ended meanwhile, or wait to be buried: 0."""
    try:
        # After the name, which may hold anything: the state and the parent.
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return 0
    return 0 if state == "Z" else int(parent)


@contextmanager
def serving(arguments: list[str], log: Path | None = None) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "strata", "serve", "--port", str(port), "--no-access-log", *arguments]
    with open(log or os.devnull, "wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        yield Server(process, f"http://127.0.0.1:{port}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


@define
class Tally:
    """What became of the requests."""

    ends: Counter[str] = field(factory=Counter)
    wrong: list[str] = field(factory=list)
    """Whole streams with other bytes than undisturbed, and beginnings of none."""
    hung: int = 0
    left: int = 0
    kills: int = 0
    kills_while_loading: int = 0
    unready: list[float] = field(factory=list)
    """How long it was not ready after each kill (seconds)."""


class Chaos:
    """One server, its clients and its killer."""

    def __init__(self, server: Server, client: httpx.AsyncClient, options: argparse.Namespace) -> None:
        self.server = server
        self.client = client
        self.options = options
        self.tally = Tally()
        self.asks = asks(options.long_words)
        self.expected: dict[str, str] = {}
        self.dice = random.Random(options.seed)

    async def run(self) -> dict[str, Any]:
        await until_ready(self.client, self.server)
        for ask in self.asks:
            self.expected[ask.name] = await self.read(ask)
        before = await self.settled(self.server.holds())
        started = time.monotonic()
        async with trio.open_nursery() as everything:
            everything.start_soon(self.kill_all)
            for _ in range(self.options.clients):
                everything.start_soon(self.come_and_go)
        wall = time.monotonic() - started
        after = await self.settled(before)
        left = {name: after[name] - before[name] for name in before}
        tally = self.tally
        return {
            "kills": tally.kills,
            "kills_while_loading": tally.kills_while_loading,
            "departures": tally.left,
            **await self.met(),
            "ends": dict(tally.ends),
            "not_byte_identical": len(tally.wrong),
            "which": sorted(set(tally.wrong))[:20],
            "hung": tally.hung,
            "left_behind": left,
            "unready_s": _quantiles(tally.unready),
            "wall_s": round(wall, 1),
        }

    @property
    def over(self) -> bool:
        return self.tally.kills >= self.options.kills and self.tally.left >= self.options.departures

    @property
    def due(self) -> bool:
        """Whether another kill is: they are spread over the departures, so that something is done in between."""
        return self.tally.kills * self.options.departures <= self.tally.left * self.options.kills

    # -- the killer -------------------------------------------------------------------------------------------------

    async def kill_all(self) -> None:
        while self.tally.kills < self.options.kills:
            await trio.sleep(self.dice.uniform(0.0, self.options.every_s))
            while not self.due:
                await trio.sleep(0.1)
            engines = self.server.engines()
            if not engines:
                raise SystemExit("the engine has no process of its own to be killed (--engine-host process)")
            os.kill(engines[0], signal.SIGKILL)
            self.tally.kills += 1
            killed = time.monotonic()
            last = engines[0]
            while self.dice.random() < LOADING and self.tally.kills < self.options.kills:
                last = await self.kill_the_next(last)
            await until_ready(self.client, self.server)
            self.tally.unready.append(time.monotonic() - killed)

    async def kill_the_next(self, before: int) -> int:
        """The one after that process, before it is up or soon after; its process."""
        while not (engines := [pid for pid in self.server.engines() if pid != before]):
            await trio.sleep(0.01)
        await trio.sleep(self.dice.uniform(0.0, 1.0))
        with suppress(ProcessLookupError):
            os.kill(engines[0], signal.SIGKILL)
        self.tally.kills += 1
        self.tally.kills_while_loading += 1
        return engines[0]

    # -- the clients ------------------------------------------------------------------------------------------------

    async def come_and_go(self) -> None:
        while not self.over:
            ask = self.dice.choice(self.asks)
            leaves = self.tally.left < self.options.departures and self.dice.random() < self.options.leaving
            if leaves:
                with trio.move_on_after(self.dice.expovariate(0.5)) as scope:
                    await self.ask(ask)
                self.tally.left += scope.cancelled_caught
            else:
                await self.ask(ask)

    async def ask(self, ask: Ask) -> None:
        text: list[str] = []
        end = "left"
        try:
            with trio.fail_after(LONGEST_S):
                end = await self.stream(ask, text)
        except (trio.TooSlowError, httpx.ReadTimeout):
            self.tally.hung += 1
            return
        except httpx.TransportError as error:
            end = f"cut: {type(error).__name__}"
        finally:
            self.judge(ask, "".join(text), end)
        self.tally.ends[end] += 1
        if end not in ("whole", "engine_unavailable"):
            await trio.sleep(0.2)

    def judge(self, ask: Ask, got: str, end: str) -> None:
        """A whole one is what it would have been; any other, also of one that left, is the beginning of that."""
        wanted = self.expected[ask.name]
        # Of a character that was cut in two by the end its first bytes are said as what they are: none.
        if got != wanted and (end == "whole" or not wanted.startswith(got.rstrip("\ufffd"))):
            self.tally.wrong.append(f"{ask.name}: {end}")

    async def read(self, ask: Ask) -> str:
        text: list[str] = []
        end = await self.stream(ask, text)
        if end != "whole":
            raise SystemExit(f"undisturbed, {ask.name} ended with {end}")
        return "".join(text)

    async def stream(self, ask: Ask, text: list[str]) -> str:
        """Fill `text`; how it ended."""
        async with self.client.stream("POST", "/v1/chat/completions", json=ask.body) as answer:
            if answer.status_code != 200:
                refused: str = json.loads(await answer.aread())["error"]["type"]
                return refused
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    return "whole"
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        said: str = event["error"]["type"]
                        return said
                    text += [choice["delta"].get("content") or "" for choice in event["choices"]]
        return "cut: no end"

    # -- what is left -----------------------------------------------------------------------------------------------

    async def settled(self, wanted: dict[str, int]) -> dict[str, int]:
        """What it holds, once that is no more than `wanted`, or will not be."""
        end = time.monotonic() + SETTLES_S
        while True:
            await self.client.aclose()
            self.client = make_client(self.server.url)
            now = {**self.server.holds(), **await self.figures()}
            if time.monotonic() > end or all(now[name] <= wanted.get(name, 0) for name in now):
                return now
            await trio.sleep(0.5)

    async def figures(self) -> dict[str, int]:
        """Requests, pages, arena, workspaces, tasks and actors, as the server itself counts them."""
        text = (await self.client.get("/metrics")).text
        actors = (await self.client.get("/admin/actors")).json()["actors"]
        held = sum_of(text, "strata_pages{", 'state="held"') + sum_of(text, "strata_pages{", 'state="swapping"')
        return {
            "requests": sum_of(text, "strata_requests{"),
            "pages_held": held,
            "arena_pages_held": sum_of(text, "strata_slots{", 'state="used"'),
            "workspaces_used": sum_of(text, "strata_workspaces{", 'state="used"'),
            "tasks": sum_of(text, "strata_tasks{"),
            "mailboxes": sum_of(text, "strata_mailbox_depth{"),
            "actors": len(actors) - len([a for a in actors if a["kind"] in ("runtime", "dispatcher", "engine")]),
        }

    async def met(self) -> dict[str, int]:
        """What the load has brought about, over all engines."""
        text = (await self.client.get("/metrics")).text
        return {
            "engines": sum_of(text, "strata_engine_incarnation{"),
            "parks": sum_of(text, "strata_parks_total{"),
            "pages_moved_to_the_arena": sum_of(text, "strata_pages_moved_total{", 'to="out"'),
        }


def sum_of(text: str, start: str, holds: str = "") -> int:
    lines = [line for line in text.splitlines() if line.startswith(start) and holds in line]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    picked = {"median": 0.5, "p95": 0.95, "longest": 1.0}
    return {
        name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 3) for name, q in picked.items() if ordered
    }


async def until_ready(client: httpx.AsyncClient, server: Server) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            answer = await client.get("/ready")
        except httpx.TransportError:
            await trio.sleep(0.05)
            continue
        # A kill that the server has not noticed yet looks like readiness.
        if answer.status_code == 200 and server.engines():
            return
        await trio.sleep(0.02)
    raise SystemExit(f"the server did not get ready (exit code {server.process.poll()})")


def make_client(url: str) -> httpx.AsyncClient:
    timeout = httpx.Timeout(HANGS_S)
    return httpx.AsyncClient(base_url=url, timeout=timeout, limits=httpx.Limits(max_connections=None))


async def one(death: str, options: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--on-engine-death", death, "--max-replays", "1000000", "--engine-host", "process"]
    arguments += ["--restart-limit", "1000000", "--restart-backoff-s", "0", *TIGHT, *options.arguments]
    with serving(arguments, options.log) as server:
        chaos = Chaos(server, make_client(server.url), options)
        try:
            found = await chaos.run()
        finally:
            await chaos.client.aclose()
    return {"on_engine_death": death, **found}


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"


def is_well(found: dict[str, Any]) -> bool:
    allowed = {"whole"} if found["on_engine_death"] == "replay" else {"whole", "engine_unavailable"}
    left = any(number > 0 for number in found["left_behind"].values())
    met = found["parks"] and found["pages_moved_to_the_arena"]
    ends_well = set(found["ends"]) <= allowed and not found["not_byte_identical"] and not found["hung"]
    return ends_well and not left and bool(met)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--departures", type=int, default=20)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--leaving", type=float, default=0.8, help="the share of requests whose client leaves")
    parser.add_argument("--every-s", type=float, default=4.0, help="the longest time from ready to a kill")
    parser.add_argument("--long-words", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deaths", nargs="+", default=["replay", "fail"], choices=["replay", "fail"])
    parser.add_argument("--log", type=Path, default=None, help="a file for what the last server says")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("arguments", nargs="*", help="for strata serve, after --")
    options = parser.parse_args()
    before = os.getloadavg()
    runs = [trio.run(one, death, options) for death in options.deaths]
    result = {
        "command": shlex.join(["bench/chaos.py", *sys.argv[1:]]),
        "machine": machine(),
        "load_average": {"before": before, "after": os.getloadavg()},
        "well": all(is_well(found) for found in runs),
        "runs": runs,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    sys.exit(0 if result["well"] else 1)


if __name__ == "__main__":
    main()
