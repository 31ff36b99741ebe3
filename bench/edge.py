#!/usr/bin/env python3
"""What the edge costs, and what it bears: CPU for each token event, and one server under many kinds of clients.

The engine is scripted (`scripted_server.py`, a process of its own), so that all that is seen is ours.  The CPU of the
edge is that of a server with so many streams, less that of the same runtime whose answers are read without an edge.

    bench/edge.py --seconds 20

Clients are plain sockets in this process.  The JSON says which command made it, on what, and how busy that was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import trio
import trio.testing

HERE = Path(__file__).parent
RATE = 50
"""Tokens a second of each stream."""
STREAMS, IDLE, AT_ONCE, STALLED = 64, 500, 60, 64
STALL_S = 40
"""When the server drops a client that takes nothing: after the figures were taken."""
FILL_S = 15
"""Until the buffers of clients that don't read are full."""
SERVER = ["--pages", "40000", "--context", "20000", "--slice-s", "0.0002", "--step-s", str(1 / RATE)]
ROOM = 8
"""Answers that run beside the streams and the stalled ones."""


class Child:
    """A scripted server in its own process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._said, self._hear = process.stdin, process.stdout
        self.address = self._hear.readline().strip()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def figures(self) -> dict[str, Any]:
        return await trio.to_thread.run_sync(self._figures)

    def _figures(self) -> dict[str, Any]:
        self._said.write("figures\n")
        self._said.flush()
        told: dict[str, Any] = json.loads(self._hear.readline())
        return told


@contextmanager
def child(*arguments: str) -> Iterator[Child]:
    command = [sys.executable, str(HERE / "scripted_server.py"), *SERVER, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            yield Child(process)
        finally:
            process.stdin.close()
            process.wait(30)


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


# -- clients ----------------------------------------------------------------------------------------------------------


def chat(max_tokens: int, *, stream: bool, close: bool = False) -> bytes:
    """A request's bytes."""
    asked = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": max_tokens, "stream": stream}
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return (head + "Content-Type: application/json\r\n" + "Connection: close\r\n" * close + "\r\n").encode() + body


class Reader:
    """A client that reads a stream as it comes, and counts its events."""

    def __init__(self) -> None:
        self.events = 0

    async def run(self, port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(chat(10_000, stream=True))
            head = await stream.receive_some()
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"a stream was refused: {head!r}")
            async for data in stream:
                self.events += data.count(b'"finish_reason":null')
                if self.events > 1:
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
        raise SystemExit("a healthy stream ended")


async def stalled(port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Ask for a long answer and read nothing of it."""
    with trio.socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await client.connect(("127.0.0.1", port))
        await client.send(chat(10_000, stream=True))
        task_status.started()
        await trio.sleep_forever()


async def idle(port: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """A connection that was used once."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await get_health(stream)
        task_status.started()
        if await stream.receive_some() == b"":
            raise SystemExit("an idle connection was closed")


async def get_health(stream: trio.SocketStream, *, close: bool = False) -> None:
    await stream.send_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"Connection: close\r\n" * close + b"\r\n")
    got = b""
    while not got.endswith(b"}"):
        more = await stream.receive_some()
        if not more:
            raise SystemExit(f"/health was cut: {got!r}")
        got += more
    if not got.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"/health said {got!r}")


async def poll_health(port: int, times: list[float], *, fresh: bool) -> None:
    """Add how long each answer took, of one connection or of a fresh one each (then with the connecting)."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    while True:
        began = time.perf_counter()
        if fresh:
            await stream.aclose()
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        await get_health(stream, close=fresh)
        times.append(time.perf_counter() - began)
        await trio.sleep(0.02)


async def ask_once(port: int, go: trio.Event, statuses: list[str]) -> None:
    await go.wait()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(chat(20, stream=False, close=True))
        got = b""
        async for data in stream:
            got += data
    status = got[9:12].decode() or "no answer"
    if status == "429" and b"retry-after:" not in got.lower():
        status = "429 without Retry-After"
    statuses.append(status)


# -- (a) ---------------------------------------------------------------------------------------------------------------


async def cpu(seconds: float, *, edge: bool) -> dict[str, Any]:
    """CPU microseconds for each token, of the whole server, with an edge or with readers in its place."""
    running = settings(f"max_running={STREAMS}")
    with child(*running, *(() if edge else ("--readers", str(STREAMS)))) as server:
        async with trio.open_nursery() as clients:
            readers = [Reader() for _ in range(STREAMS)] if edge else []
            for reader in readers:
                await clients.start(reader.run, server.port)
            await trio.sleep(2)
            before, seen = await server.figures(), sum(reader.events for reader in readers)
            await trio.sleep(seconds)
            after, seen = await server.figures(), sum(reader.events for reader in readers) - seen
            clients.cancel_scope.cancel()
    tokens = after["tokens"] - before["tokens"]
    used, took = after["cpu_s"] - before["cpu_s"], after["at_s"] - before["at_s"]
    return {
        "us_per_event": round(used / tokens * 1e6, 2),
        "of_it_in_the_kernel": round((after["kernel_s"] - before["kernel_s"]) / tokens * 1e6, 2),
        "events_per_s_of_a_stream": round(tokens / took / STREAMS, 2),
        "events_seen": seen,
        "events_sent": tokens,
        "core_share": round(used / took, 4),
    }


async def wake_us(rounds: int = 2 * RATE) -> float:
    """CPU microseconds to wake a task that does nothing, so many of them at this pace: the machine's own measure."""
    lots = [trio.lowlevel.ParkingLot() for _ in range(STREAMS)]

    async def sleeper(lot: trio.lowlevel.ParkingLot) -> None:
        while True:
            await lot.park()

    async with trio.open_nursery() as nursery:
        for lot in lots:
            nursery.start_soon(sleeper, lot)
        await trio.testing.wait_all_tasks_blocked()
        before = time.process_time()
        for _ in range(rounds):
            for lot in lots:
                lot.unpark_all()
            await trio.sleep(1 / RATE)
        used = time.process_time() - before
        nursery.cancel_scope.cancel()
    return round(used / rounds / STREAMS * 1e6, 2)


async def bare_us(rounds: int = 200) -> dict[str, float]:
    """CPU microseconds of what no edge can do without: a send of 250 bytes over loopback, and a Trio checkpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            sent = time.process_time()
            for _ in range(rounds):
                near.send(b"x" * 250)
            sent = time.process_time() - sent
    waited = time.process_time()
    for _ in range(rounds):
        await trio.lowlevel.checkpoint()
    waited = time.process_time() - waited
    return {"send": round(sent / rounds * 1e6, 2), "checkpoint": round(waited / rounds * 1e6, 2)}


async def cost(seconds: float, repeats: int) -> dict[str, Any]:
    """Both, in turn, so that a machine whose speed drifts treats them alike."""
    with_edge, without, wakes, bare = [], [], [], []
    for _ in range(repeats):
        wakes.append(await wake_us())
        bare.append(await bare_us())
        with_edge.append(await cpu(seconds, edge=True))
        without.append(await cpu(seconds, edge=False))
    raw = statistics.median(each["us_per_event"] for each in with_edge)
    rest = statistics.median(each["us_per_event"] for each in without)
    return {
        "streams": STREAMS,
        "server_us_per_event": raw,
        "engine_and_actors_us_per_event": rest,
        "edge_us_per_event": round(raw - rest, 2),
        "target_us": 25,
        "task_wake_us": statistics.median(wakes),
        "bare_us": {name: statistics.median(each[name] for each in bare) for name in bare[0]},
        "with_edge": with_edge,
        "without_edge": without,
    }


# -- (b) ---------------------------------------------------------------------------------------------------------------


async def load(seconds: float) -> dict[str, Any]:
    """500 idle, 64 that stream, 60 at once, 64 that don't read; the server's figures before and after each."""
    limits = settings(f"max_running={STREAMS + STALLED + ROOM}", "max_queued=32", f"stall_timeout_s={STALL_S}")
    with child(*limits, *settings("keep_alive_s=600")) as server:
        async with trio.open_nursery() as clients:
            told = await loaded(server, clients, seconds)
            clients.cancel_scope.cancel()
    return told


async def loaded(server: Child, clients: trio.Nursery, seconds: float) -> dict[str, Any]:
    port = server.port
    await warm_up(port)
    memory = {"start": (await server.figures())["rss"]}
    for _ in range(IDLE):
        await clients.start(idle, port)
    memory["idle"] = (await server.figures())["rss"]
    readers = [Reader() for _ in range(STREAMS)]
    for reader in readers:
        await clients.start(reader.run, port)
    await trio.sleep(1)
    memory["streaming"] = (await server.figures())["rss"]
    alone = await paces(readers, seconds)
    memory["streamed"] = (await server.figures())["rss"]
    for _ in range(STALLED):
        await clients.start(stalled, port)
    await trio.sleep(FILL_S)
    times: dict[str, list[float]] = {"kept": [], "fresh": []}
    statuses: list[str] = []
    async with trio.open_nursery() as polling:
        for kind, taken in times.items():
            polling.start_soon(lambda kind=kind, taken=taken: poll_health(port, taken, fresh=kind == "fresh"))
        polling.start_soon(burst, port, statuses)
        beside = await paces(readers, seconds)
        polling.cancel_scope.cancel()
    during = await server.figures()
    memory["stalled"] = during["rss"]
    dropped_after = await until_dropped(server)
    return {
        "statuses_at_once": dict(Counter(statuses)),
        "health_ms": {kind: quantiles(taken) for kind, taken in times.items()},
        "pace_alone": spread(alone),
        "pace_beside_stalled": spread(beside),
        "worst_share_of_pace": round(min(b / a for a, b in zip(alone, beside, strict=True)), 4),
        "decoding_beside_stalled": during["decoding"],
        "stalled_dropped_after_s": dropped_after,
        "rss": memory,
        "bytes_per_idle_connection": (memory["idle"] - memory["start"]) // IDLE,
        "bytes_per_stream": (memory["streaming"] - memory["idle"]) // STREAMS,
        "bytes_per_stream_later": (memory["streamed"] - memory["idle"]) // STREAMS,
        "bytes_per_stalled_reader": (memory["stalled"] - memory["streamed"]) // STALLED,
    }


async def warm_up(port: int) -> None:
    """Each kind of answer once, so that what is loaded on first use isn't counted."""
    statuses: list[str] = []
    go = trio.Event()
    go.set()
    await ask_once(port, go, statuses)
    async with trio.open_nursery() as clients:
        for _ in range(4):
            await clients.start(Reader().run, port)
        clients.cancel_scope.cancel()
    await trio.sleep(0.5)


async def burst(port: int, statuses: list[str]) -> None:
    go = trio.Event()
    async with trio.open_nursery() as clients:
        for _ in range(AT_ONCE):
            clients.start_soon(ask_once, port, go, statuses)
        await trio.sleep(1)
        go.set()


async def paces(readers: list[Reader], seconds: float) -> list[float]:
    """Events a second of each."""
    before, began = [reader.events for reader in readers], time.perf_counter()
    await trio.sleep(seconds)
    took = time.perf_counter() - began
    return [(reader.events - n) / took for reader, n in zip(readers, before, strict=True)]


async def until_dropped(server: Child) -> float | None:
    """Until only those are left that read; seconds, or None where that takes too long."""
    began = time.monotonic()
    with trio.move_on_after(2 * STALL_S):
        while (await server.figures())["decoding"] > STREAMS:
            await trio.sleep(0.5)
        return round(time.monotonic() - began, 1)
    return None


def quantiles(taken: list[float]) -> dict[str, Any]:
    """In milliseconds."""
    ordered = sorted(taken)
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered) * 1000, 2),
        "p99": round(ordered[int(len(ordered) * 0.99)] * 1000, 2),
        "max": round(ordered[-1] * 1000, 2),
    }


def spread(pace: list[float]) -> dict[str, float]:
    return {"least": round(min(pace), 2), "median": round(statistics.median(pace), 2), "most": round(max(pace), 2)}


# -- the whole ---------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "processor": next((x.split(":", 1)[1].strip() for x in lines if "model name" in x), "?"),
        "processors_usable": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        **{name: version(name) for name in ("trio", "quart", "quart-trio", "hypercorn")},
        "load_before": os.getloadavg(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="how long each figure is taken")
    parser.add_argument("--repeats", type=int, default=3, help="of the CPU figures")
    parser.add_argument("--only", choices=("cost", "load"))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "edge.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"command": shlex.join(["bench/edge.py", *sys.argv[1:]]), "machine": machine()}
    if arguments.only != "load":
        result["cost"] = trio.run(cost, arguments.seconds, arguments.repeats)
    if arguments.only != "cost":
        result["load"] = trio.run(load, arguments.seconds)
    result["machine"]["load_after"] = os.getloadavg()
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
