"""A client that leaves, in any way and in any state, is forgotten, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import CHAT, RawChat, RawClient, Server, Stream, chat_body, served, until

LONG = "river stone market signal garden copper winter engine letter bridge harbor meadow " * 30
WAYS = ["close", "reset", "half_close"]


@pytest.fixture(scope="module")
def server(default_model_path: Path) -> Iterator[Server]:
    """One row, so that a second request waits or takes the row; and every prompt is read, however often it came."""
    flags = ("--policy", "preempt", "--chunk-tokens", "128", "--kv-mib", "512", "--max-priority", "10")
    flags = (*flags, "--no-prefix-cache")
    with served("--model", default_model_path, *flags) as server:
        yield server


def in_state(server: Server, state: str) -> str:
    """The id of the one request that is in this state, as soon as there is one; its prompt is tokens by then."""

    def look() -> str | None:
        found = server.requests().items()
        return next((n for n, a in found if a["state"] == state and a["figures"]["prompt_tokens"]), None)

    return str(until(look, f"a request is {state}"))


def nothing_is_left(server: Server) -> bool:
    return not server.requests() and server.figure("strata_pages", state="held") == 0


def assert_forgotten(server: Server, name: str) -> None:
    until(lambda: name not in server.requests(), f"{name} is gone")
    assert server.actor(name)["outcome"] == "cancelled by client"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_prompt_is_read_stops_the_read(server: Server, way: str, stream: bool) -> None:
    """B21: over a real socket, streaming or not."""
    client = RawChat(server, LONG, stream=stream, max_tokens=200)
    name = in_state(server, "reading")
    getattr(client, way)()
    assert_forgotten(server, name)
    client.close()
    assert server.actor(name)["info"]["figures"]["written_tokens"] == 0
    until(lambda: nothing_is_left(server), "nothing is left")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_while_decoding_is_in_no_further_step(server: Server, way: str) -> None:
    """B23: over a real socket."""
    client = RawChat(server, "Count.", stream=True, max_tokens=4000, ignore_eos=True)
    client.read_until(b'"content":"')
    name = in_state(server, "decoding")
    getattr(client, way)()
    assert_forgotten(server, name)
    client.close()
    assert server.actor(name)["info"]["figures"]["written_tokens"] < 4000
    until(lambda: nothing_is_left(server), "nothing is left")


def test_a_queued_client_that_leaves_is_never_started(server: Server) -> None:
    """B20: and leaves no trace in gauges or ledger; B24: the other's stream is what it was."""
    alone = Stream(server, LONG, max_tokens=8).whole()
    long = Stream(server, LONG, max_tokens=8)
    in_state(server, "reading")
    # As long as the other, so that it may not pass.
    client = RawChat(server, LONG, stream=True, max_tokens=8)
    name = in_state(server, "queued")
    client.reset()
    assert_forgotten(server, name)
    assert [change["state"] for change in server.actor(name)["history"]] == ["queued", "done"]
    assert long.whole() == alone
    until(lambda: nothing_is_left(server), "nothing is left")


def test_a_client_that_leaves_while_parked_is_forgotten_while_another_runs(server: Server) -> None:
    """B22: its pages are free although another request runs all the time."""
    client = RawChat(server, LONG, stream=True, max_tokens=8)
    parked = in_state(server, "reading")
    other = RawChat(server, "Count.", stream=True, max_tokens=2000, ignore_eos=True, priority=5)
    until(lambda: server.requests()[parked]["state"] == "parked (reading)", "the long one is parked")
    client.reset()
    assert_forgotten(server, parked)
    assert server.requests(), "the other one runs on"
    other.close()
    until(lambda: nothing_is_left(server), "nothing is left")


def test_an_operator_withdraws_one_request_and_no_other(server: Server) -> None:
    """B24: a cancel names one request; its reader gets an error event (B56), the next one an answer."""
    victim = Stream(server, LONG, max_tokens=8)
    name = in_state(server, "reading")
    waiting = Stream(server, LONG, max_tokens=8)
    in_state(server, "queued")
    assert server.post(f"/admin/actors/{name}/cancel", {})[0] == 200
    assert server.post(f"/admin/actors/{name}/cancel", {})[0] == 409
    assert server.post("/admin/actors/request-99999/cancel", {})[0] == 404
    victim.join()
    assert victim.error
    assert not victim.done
    assert waiting.whole() == Stream(server, LONG, max_tokens=8).whole()


def number_of_the_next(server: Server, name: str) -> int:
    """The number of the actor of a small request that is sent now: so many were ever made."""
    headers = {"content-type": "application/json", "x-request-id": name}
    assert server.post(CHAT, chat_body("Hi.", max_tokens=1), headers)[0] == 200
    return int(server.line_of(name)["actor"].removeprefix("request-"))


# A reset may overtake what was sent, and then there was no request at all.
@pytest.mark.parametrize("way", ["close", "half_close"])
def test_a_body_that_never_comes_whole_makes_no_actor(server: Server, way: str) -> None:
    """B21: a client that leaves in the midst of its upload."""
    before = number_of_the_next(server, f"before-{way}")
    body = json.dumps(chat_body("Hi.")).encode()
    client = RawClient(server)
    client.post(body[:-1], length=len(body), headers=f"x-request-id: upload-{way}\r\n")
    getattr(client, way)()
    line = server.line_of(f"upload-{way}")
    client.close()
    assert line["status"] == 499
    assert "actor" not in line
    assert server.requests() == {}
    assert number_of_the_next(server, f"after-{way}") == before + 1
