"""Requests over HTTP/2 through all of the edge, from the socket to the engine: what a leaving client still costs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from api_call import CHAT, Served, chat, served
from edge_support import H2_WAYS, H2Client

from strata.runtime import ActorInfo
from strata.testing import ScriptedEngine

LONG = "word " * 400
SLICE_S = 0.1
"""Long beside what a loopback takes, so that what ran before the leaving was seen is one slice or step, or two."""
SOON = 2


def engine() -> ScriptedEngine:
    return ScriptedEngine(slice_s=SLICE_S, step_s=SLICE_S)


async def ask(client: H2Client, content: str, **named: Any) -> int:
    """Send a chat; the number of its stream."""
    stream_id = await client.request(
        CHAT.encode(), method=b"POST", body=True, more=[(b"content-type", b"application/json")]
    )
    client.h2.send_data(stream_id, json.dumps(chat(content, **named)).encode(), end_stream=True)
    await client.flush()
    return stream_id


@asynccontextmanager
async def client_of(server: Served) -> AsyncIterator[H2Client]:
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    try:
        yield await H2Client.over(stream)
    finally:
        stream.socket.close()


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(10):
        while not holds():
            await trio.testing.wait_all_tasks_blocked(0.005)


def requests(server: Served) -> dict[str, str]:
    """The states of the requests that there are, by id."""
    infos: tuple[ActorInfo, ...] = server.runtime.tree()
    return {info.id: info.state for info in infos if info.kind == "request"}


def runs_of(engine: ScriptedEngine, seq: int) -> int:
    """The slices and steps that one sequence was in."""
    return sum(seq in ran.seqs for ran in engine.log)


async def assert_left(server: Served, name: str, state: str) -> None:
    """It has ended, the client's doing, and before it ended it was in this state."""
    await until(lambda: name not in requests(server))
    detail = server.runtime.actor(name)
    assert detail.outcome == "cancelled by client"
    assert [change.state for change in detail.history][-2:] == [state, "done"]


@pytest.mark.parametrize("leave", H2_WAYS)
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_over_http2_while_the_prompt_is_read_stops_the_read(leave: Any, stream: bool) -> None:
    """B21: within a slice, streaming or not."""
    reader = engine()
    async with served(reader, allow_h2c=True) as server, client_of(server) as client:
        stream_id = await ask(client, LONG, stream=stream)
        await until(lambda: runs_of(reader, 1))
        before = runs_of(reader, 1)
        await leave(client, stream_id)
        await assert_left(server, "request-1", "reading")
        assert runs_of(reader, 1) <= before + SOON
        await until(lambda: not server.runtime.statistics().pages_held)
        assert (await server.logged())["status"] == 499


@pytest.mark.parametrize("leave", H2_WAYS)
async def test_leaving_over_http2_while_parked_frees_the_pages_beside_another(leave: Any) -> None:
    """B22: another request runs all the while, and isn't waited for."""
    reader = engine()
    settings = {"policy": "preempt", "max_priority": 10}
    async with (
        served(reader, allow_h2c=True, **settings) as server,
        client_of(server) as client,
        client_of(server) as other,
    ):
        stream_id = await ask(client, LONG, stream=True, max_tokens=8)
        await until(lambda: runs_of(reader, 1))
        await ask(other, "short", stream=True, max_tokens=1000, priority=5)
        await until(lambda: requests(server).get("request-1") == "parked (reading)")
        both = server.runtime.statistics().pages_held
        await leave(client, stream_id)
        await assert_left(server, "request-1", "parked (reading)")
        await until(lambda: server.runtime.statistics().pages_held < both)
        assert list(requests(server)) == ["request-2"]


@pytest.mark.parametrize("leave", H2_WAYS)
async def test_leaving_over_http2_while_decoding_ends_its_rows(leave: Any) -> None:
    """B23: no further step includes it, and the other one's go on."""
    writer = engine()
    async with (
        served(writer, allow_h2c=True) as server,
        client_of(server) as client,
        client_of(server) as other,
    ):
        stream_id = await ask(client, "short", stream=True, max_tokens=1000)
        await until(lambda: requests(server))
        await ask(other, "another", stream=True, max_tokens=1000)
        await client.until(lambda: client.data[stream_id].count(b'"content":"') > 2)
        before = runs_of(writer, 1)
        await leave(client, stream_id)
        await assert_left(server, "request-1", "decoding")
        assert runs_of(writer, 1) <= before + SOON
        at_the_end = runs_of(writer, 1)
        others = runs_of(writer, 2)
        await until(lambda: runs_of(writer, 2) > others + 2)
        assert runs_of(writer, 1) == at_the_end
