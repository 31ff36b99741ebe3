"""Chats through our application, in virtual time: whole answers, streams, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from api_call import CHAT, Answer, call, chat
from quart_trio import QuartTrio

from strata.http.app import create_app
from strata.runtime import Runtime, open_runtime
from strata.testing import Fault, RowFault, Script, ScriptedEngine

PONG = Script(by_text={"ping": "pong!"})
PROMPT = len("user: ping\nassistant: ")


@asynccontextmanager
async def opened(engine: ScriptedEngine | None = None, **named: Any) -> AsyncIterator[tuple[QuartTrio, Runtime]]:
    async with open_runtime(host=engine or ScriptedEngine(script=PONG), **named) as runtime:
        yield create_app(runtime), runtime


async def test_a_whole_answer_has_text_reason_usage_and_timings(autojump_clock):
    async with opened() as (app, runtime):
        answer = await call(app, "POST", CHAT, chat("ping"))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    told = answer.json
    assert told["id"].startswith("chatcmpl-")
    assert (told["object"], told["model"]) == ("chat.completion", runtime.model.id)
    (choice,) = told["choices"]
    assert choice["message"] == {"role": "assistant", "content": "pong!", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    assert told["usage"]["prompt_tokens"] == PROMPT
    assert told["usage"]["total_tokens"] == PROMPT + told["usage"]["completion_tokens"]
    assert told["timings"]["total_s"] >= told["timings"]["ttft_s"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_reached_max_tokens_says_length(autojump_clock, stream):
    async with opened() as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", max_completion_tokens=3, stream=stream))
    choices = [event["choices"][0] for event in answer.events] if stream else answer.json["choices"]
    assert choices[-1]["finish_reason"] == "length"
    assert (answer.text if stream else choices[0]["message"]["content"]) == "pon"


async def test_a_stop_string_cuts_the_answer(autojump_clock):
    async with opened() as (app, _):
        for stream in (False, True):
            answer = await call(app, "POST", CHAT, chat("ping", stop=["x", "ng"], stream=stream))
            last = (answer.events if stream else [answer.json])[-1]["choices"][0]
            assert last["finish_reason"] == "stop"
            assert (answer.text if stream else last["message"]["content"]) == "po"


async def test_a_stream_is_role_deltas_reason_usage_and_end(autojump_clock):
    """B52: usage in its own chunk, with empty choices, before `[DONE]`; exactly one finish reason."""
    async with opened() as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True, stream_options={"include_usage": True}))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    first, *others, usage = answer.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [event["choices"][0]["finish_reason"] for event in others]
    assert reasons.count("stop") == 1
    assert reasons[-1] == "stop"
    assert answer.text == "pong!"
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens"] == PROMPT
    assert usage["timings"]["total_s"] > 0
    assert len({event["id"] for event in answer.events}) == 1
    assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert answer.complete


async def test_without_being_asked_no_chunk_speaks_of_usage(autojump_clock):
    async with opened() as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True))
    assert not any("usage" in event for event in answer.events)
    assert answer.events[-1]["timings"]["total_s"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_come_for_each_token_and_only_when_asked_for(autojump_clock, stream):
    async with opened() as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", logprobs=True, top_logprobs=2, stream=stream))
    choices = [event["choices"][0] for event in answer.events] if stream else answer.json["choices"]
    tokens = [token for choice in choices for token in (choice["logprobs"] or {"content": []})["content"]]
    assert b"".join(bytes(token["bytes"]) for token in tokens) == b"pong!"
    assert all(token["logprob"] <= 0 for token in tokens)
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)


async def test_what_is_ready_together_is_one_write(autojump_clock):
    """While one write waits for its client, tokens gather, and the next write has them all."""
    async with opened(ScriptedEngine(script=PONG, step_s=1.0)) as (app, _):
        answer = Answer()
        slow = _SlowClient(app, answer, seconds=100.0)
        await call(slow, "POST", CHAT, chat("ping", stream=True), answer=answer)
    assert answer.text == "pong!"
    assert len(answer.parts) == 2


async def test_comments_come_by_the_clock_while_one_slice_takes_a_minute(autojump_clock):
    """B53: no progress is made, and still the client hears where it stands."""
    async with opened(ScriptedEngine(script=PONG, slices_per_chunk=1, slice_s=60.0)) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True))
    reading = f": reading 0/{PROMPT}"
    assert answer.comments == [(at, reading) for at in (1.0, 11.0, 21.0, 31.0, 41.0, 51.0)]
    assert answer.head_at == 1.0
    assert answer.text == "pong!"


async def test_comments_come_by_the_clock_while_queued(autojump_clock):
    """B53: and name how many are ahead."""
    engine = ScriptedEngine(script=PONG, slices_per_chunk=1, slice_s=25.0)
    async with opened(engine, policy="fifo") as (app, _), trio.open_nursery() as nursery:
        nursery.start_soon(call, app, "POST", CHAT, chat("ping", max_tokens=1))
        await trio.sleep(0.5)
        answer = await call(app, "POST", CHAT, chat("ping", stream=True))
    assert answer.comments[:3] == [(1.0, ": queued 1"), (11.0, ": queued 1"), (21.0, ": queued 1")]
    assert answer.text == "pong!"


async def test_comments_come_by_the_clock_while_parked(autojump_clock):
    """B53: a long read that gave way says so."""
    engine = ScriptedEngine(script=PONG, slices_per_chunk=8, slice_s=5.0, step_s=10.0)
    async with opened(engine, policy="preempt") as (app, _), trio.open_nursery() as nursery:
        answer = Answer()
        nursery.start_soon(_call_into, app, chat("ping" * 400, stream=True, max_tokens=2), answer)
        await trio.sleep(11.0)
        await call(app, "POST", CHAT, chat("ping", max_tokens=5))
    assert ": parked" in [text for _, text in answer.comments]
    gaps = [later - earlier for (earlier, _), (later, _) in zip(answer.parts, answer.parts[1:], strict=False)]
    assert max(gaps) == pytest.approx(10.0)


async def test_a_slow_decoder_comments_between_its_tokens(autojump_clock):
    async with opened(ScriptedEngine(script=PONG, step_s=15.0), comment_s=4.0) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True, max_tokens=2))
    assert [text for _, text in answer.comments] == [": decoding 1"] * 3


async def test_return_progress_tells_the_same_figures_as_events(autojump_clock):
    engine = ScriptedEngine(script=PONG, chunk_tokens=16, slices_per_chunk=1, slice_s=1.4)
    async with opened(engine, chunk_tokens=16) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True, return_progress=True))
    first, *others = answer.events
    assert first["choices"][0]["delta"]["role"] == "assistant"
    told = [event["prompt_progress"] for event in others if "prompt_progress" in event]
    assert [(one["state"], one["processed"], one["total"]) for one in told] == [
        ("reading", 0, PROMPT),
        ("reading", 16, PROMPT),
    ]
    assert all(event["choices"] == [] for event in others if "prompt_progress" in event)
    assert answer.comments == []
    assert answer.text == "pong!"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_before_the_first_byte_is_a_503(autojump_clock, stream):
    engine = ScriptedEngine(script=PONG, faults=[Fault(slice=1)])
    async with opened(engine) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=stream))
        later = await call(app, "POST", CHAT, chat("ping", stream=stream))
        health, ready = await call(app, "GET", "/health"), await call(app, "GET", "/ready")
    for refused in (answer, later):
        assert (refused.status, refused.error["type"]) == (503, "engine_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-request-id"]
    assert (health.status, health.json["state"]) == (200, "failed")
    assert (ready.status, ready.json["state"]) == (503, "failed")
    assert ready.json["reason"]


@pytest.mark.parametrize("fault", [Fault(step=3), RowFault(seq=1, index=3)])
async def test_an_error_after_the_stream_began_is_an_event_and_then_the_end(autojump_clock, fault):
    """B56: never a silent cut, never `[DONE]` as if all were well."""
    async with opened(ScriptedEngine(script=PONG, faults=[fault])) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True))
    assert answer.status == 200
    assert answer.text == "pon"
    assert answer.events[-1]["error"]["type"] in ("engine_unavailable", "internal_error")
    assert not any(choice.get("finish_reason") for event in answer.events for choice in event.get("choices", ()))
    assert b"[DONE]" not in answer.body
    assert answer.complete


async def test_an_error_after_the_first_comment_is_an_event_too(autojump_clock):
    """B56: the status line was out already."""
    engine = ScriptedEngine(chunk_tokens=16, slices_per_chunk=1, slice_s=3.0, faults=[Fault(slice=2)])
    async with opened(engine, chunk_tokens=16) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", stream=True))
    assert answer.status == 200
    assert [event["error"]["type"] for event in answer.events] == ["engine_unavailable"]
    assert b"[DONE]" not in answer.body


async def test_a_full_queue_is_429_and_says_when_to_come_again(autojump_clock):
    """B62: streamed or not; a status, not an event."""
    engine = ScriptedEngine(script=PONG, slice_s=1.0)
    async with opened(engine, policy="fifo", max_queued=1) as (app, _), trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(call, app, "POST", CHAT, chat("ping"))
            await trio.sleep(0.1)
        for stream in (False, True):
            answer = await call(app, "POST", CHAT, chat("ping", stream=stream))
            assert (answer.status, answer.error["type"]) == (429, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        assert (await call(app, "GET", "/ready")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_400_and_names_both_sizes(autojump_clock, stream):
    async with opened(ScriptedEngine(context=512, pages=16)) as (app, _):
        answer = await call(app, "POST", CHAT, chat("x" * 600, stream=stream))
        after = await call(app, "POST", CHAT, chat("x", max_tokens=1, stream=stream))
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "512" in answer.error["message"]
    assert str(600 + len("user: \nassistant: ")) in answer.error["message"]
    assert after.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_404_and_a_known_name_or_default_is_served(autojump_clock, stream):
    async with opened(served_name="tiny") as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", model="other", stream=stream))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
        for name in ("tiny", "default"):
            assert (await call(app, "POST", CHAT, chat("ping", model=name, stream=stream))).status == 200


async def test_a_client_that_leaves_takes_its_request_along(autojump_clock):
    """Nothing but the end of the handler is needed, wherever it stood."""
    engine = ScriptedEngine(script=PONG, slice_s=5.0, step_s=5.0)
    async with opened(engine) as (app, runtime):
        for stream in (False, True):
            for seconds in (0.5, 12.0, 27.0):
                with trio.move_on_after(seconds) as left:
                    await call(app, "POST", CHAT, chat("ping", stream=stream))
                assert left.cancelled_caught
                now = runtime.statistics()
                assert (now.queued, now.reading, now.parked, now.decoding, now.pages_held) == (0, 0, 0, 0, 0)


async def test_a_cancelled_request_says_so_to_its_client(autojump_clock):
    engine = ScriptedEngine(script=PONG, slice_s=5.0)
    async with opened(engine) as (app, _), trio.open_nursery() as nursery:
        whole, stream = Answer(), Answer()
        nursery.start_soon(_call_into, app, chat("ping"), whole)
        nursery.start_soon(_call_into, app, chat("ping", stream=True), stream)
        await trio.sleep(2)
        for n in (1, 2):
            assert (await call(app, "POST", f"/admin/actors/request-{n}/cancel")).json["cancelled"]
    assert (whole.status, whole.error["type"], whole.headers["x-should-retry"]) == (409, "request_cancelled", "false")
    assert stream.events[-1]["error"]["type"] == "request_cancelled"


async def test_the_priority_cap_holds_for_all_but_the_administrator(autojump_clock):
    keys = {"api_keys": "user", "admin_key": "root", "max_priority": 5}
    async with opened(**keys) as (app, _):

        async def status(key: str, body: dict[str, Any], **headers: str) -> int:
            return (await call(app, "POST", CHAT, body, {"authorization": f"Bearer {key}", **headers})).status

        assert await status("user", chat("ping", priority=5)) == 200
        assert await status("user", chat("ping", priority=-100)) == 200
        assert await status("user", chat("ping", priority=6)) == 400
        assert await status("root", chat("ping", priority=100)) == 200
        assert await status("user", chat("ping"), **{"x-request-priority": "6"}) == 400
        assert await status("user", chat("ping"), **{"x-request-priority": "high"}) == 400
        assert await status("user", chat("ping"), **{"x-request-priority": "5"}) == 200


async def test_a_strict_server_refuses_fields_that_it_does_not_know(autojump_clock):
    async with opened(strict_fields=True) as (app, _):
        answer = await call(app, "POST", CHAT, chat("ping", store=True))
        assert (answer.status, answer.error["param"]) == (400, "store")
        assert (await call(app, "POST", CHAT, chat("ping"))).status == 200


async def test_a_request_id_comes_back_on_answers_and_errors(autojump_clock):
    async with opened() as (app, _):
        for path, body in (("/health", None), ("/nowhere", None), (CHAT, chat("ping")), (CHAT, chat("ping", n=7))):
            method = "GET" if body is None else "POST"
            answer = await call(app, method, path, body, {"x-request-id": "mine-1"})
            assert answer.headers["x-request-id"] == "mine-1"
        answer = await call(app, "POST", CHAT, chat("ping", stream=True))
        assert answer.headers["x-request-id"].startswith("req-")


class _SlowClient:
    """An application whose client needs a while for each part of an answer."""

    def __init__(self, app: Any, answer: Answer, *, seconds: float) -> None:
        self._app, self._answer, self._seconds = app, answer, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def slowly(message: Any) -> None:
            await send(message)
            if message.get("body"):
                await trio.sleep(self._seconds)

        await self._app(scope, receive, slowly)


async def _call_into(app: Any, body: Any, answer: Answer) -> None:
    await call(app, "POST", CHAT, body, answer=answer)
