"""The engine's process is killed under a real server: who is told, who waits, and who never notices."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from served import Server, Stream, children, served, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the engine has a process of its own on Linux alone")

LONG = "winter engine letter bridge harbor meadow river stone market signal garden copper " * 5
ASKS = {
    "decodes": {"content": "Count.", "max_tokens": 40, "priority": 1},
    "parked": {"content": f"One {LONG}", "max_tokens": 6},
    "reads": {"content": f"Two {LONG}", "max_tokens": 6, "priority": 1},
    "queued": {"content": f"Three {LONG}", "max_tokens": 6},
}
STATES = {"decodes": "decoding", "parked": "parked (reading)", "reads": "reading", "queued": "queued"}


def states(server: Server) -> set[str]:
    return {actor["state"] for actor in server.requests().values()}


def one_of_each(server: Server) -> dict[str, Stream]:
    """One that decodes, one parked, one that reads and one queued."""
    streams: dict[str, Stream] = {}
    awaited = {"decodes": "decoding", "parked": "reading", "reads": "parked (reading)", "queued": "queued"}
    for name, ask in ASKS.items():
        streams[name] = Stream(server, ignore_eos=True, **ask)
        until(lambda name=name: awaited[name] in states(server), f"{name} is {awaited[name]}")
    assert states(server) == set(STATES.values())
    return streams


def kill_engine(server: Server) -> None:
    (engine,) = children(server.process.pid)
    os.kill(engine, signal.SIGKILL)


def flags(model: Path, death: str) -> list[str | Path]:
    rows = ["--max-running", "2", "--max-priority", "1", "--chunk-tokens", "64", "--kv-mib", "256"]
    return ["--model", model, "--engine-host", "process", "--on-engine-death", death, *rows]


def test_a_killed_engine_costs_those_that_it_held_and_the_queued_one_is_served_by_the_next(
    default_model_path: Path,
) -> None:
    """B30: SIGKILL; 503 or an error event for the three, and the server goes on."""
    with served(*flags(default_model_path, "fail")) as server:
        streams = one_of_each(server)
        kill_engine(server)
        for name in ("decodes", "parked", "reads"):
            streams[name].join()
            assert streams[name].error["type"] == "engine_unavailable"
            assert not streams[name].done
        streams["queued"].whole()
        assert streams["queued"].usage["completion_tokens"] == 6
        assert server.figure("strata_engine_restarts_total") == 1
        assert server.figure("strata_engine_incarnation") == 2
        assert server.figure("strata_pages", state="held") == 0
        assert server.stop() == 0


def test_a_killed_engine_is_noticed_by_nobody_where_it_is_replayed(default_model_path: Path) -> None:
    """B31: SIGKILL; each stream has the bytes that it has undisturbed."""
    with served(*flags(default_model_path, "replay")) as server:
        streams = one_of_each(server)
        kill_engine(server)
        texts = {name: stream.whole() for name, stream in streams.items()}
        assert server.figure("strata_engine_restarts_total") == 1
        for name, ask in ASKS.items():
            alone = Stream(server, ignore_eos=True, **ask)
            assert alone.whole() == texts[name]
            assert streams[name].usage["completion_tokens"] == ask["max_tokens"]
        assert server.figure("strata_engine_restarts_total") == 1
        assert server.stop() == 0
