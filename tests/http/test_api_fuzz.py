"""Any body and any header is a client's affair: it is answered, and never by a fault of ours."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import trio
from api_call import CHAT, Answer, call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from strata.http.app import create_app
from strata.http.schema import ChatBody, Role
from strata.runtime import open_runtime
from strata.testing import ScriptedEngine

_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
_message = st.fixed_dictionaries(
    {"role": st.sampled_from(Role.__args__), "content": st.text(max_size=12)},
    optional={"name": st.text(max_size=5), "tool_calls": st.lists(_anything, max_size=1)},
)
_part = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", "x"]), "text": st.text(max_size=5)})
_plausible: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["default", "scripted", "other"]),
    "max_tokens": st.integers(0, 9),
    "max_completion_tokens": st.integers(1, 9),
    "temperature": st.floats(-0.5, 2.5),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-2, 9),
    "min_p": st.floats(0, 1),
    "seed": st.integers(-(2**64), 2**64),
    "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=17),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 21),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0, 2),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.floats(-100, 100), max_size=2),
    "n": st.integers(0, 2),
    "priority": st.integers(-101, 1),
    "min_tokens": st.integers(0, 9),
    "ignore_eos": st.booleans(),
    "return_progress": st.booleans(),
}
_chat = st.fixed_dictionaries({"messages": st.lists(_message, max_size=3)}, optional=_plausible)
_names = st.sampled_from([field.name for field in msgspec.structs.fields(ChatBody)]) | st.text(max_size=5)


@st.composite
def _bodies(draw: st.DrawFn) -> bytes:
    """A chat, of which something may be exchanged, and the bytes of which may be damaged."""
    chat = draw(_chat)
    if draw(st.booleans()):
        chat[draw(_names)] = draw(_anything)
    if chat.get("messages") and draw(st.integers(0, 3)) == 0:
        chat["messages"] = [*draw(st.lists(_anything, max_size=1)), {"role": "user", "content": draw(st.lists(_part))}]
    body = json.dumps(chat, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]
    return body


_headers = st.fixed_dictionaries(
    {},
    optional={
        name: st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20)
        for name in ("x-request-id", "x-request-priority", "authorization", "origin", "content-type", "accept")
    },
)


def _check(answer: Answer) -> None:
    assert answer.complete
    assert 200 <= answer.status < 500, answer.body
    if answer.status != 200:
        assert set(answer.error) == {"message", "type", "param", "code"}
        assert answer.error["message"]
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.body.endswith(b"data: [DONE]\n\n"), answer.body
    else:
        assert answer.json["usage"]["completion_tokens"] >= 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.tuples(_bodies(), _headers), min_size=1, max_size=12))
def test_no_body_and_no_header_is_ever_a_fault_of_ours(asked):
    """B60: each is answered, whole or as a stream to its end, or refused in the API's shape."""

    async def main() -> None:
        async with open_runtime(host=ScriptedEngine(), default_max_tokens=9) as runtime:
            app = create_app(runtime)
            for body, headers in asked:
                _check(await call(app, "POST", CHAT, body, headers))
            now = runtime.statistics()
            assert (now.queued, now.reading, now.decoding, now.pages_held) == (0, 0, 0, 0)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD"]), st.text(max_size=20), _headers)
def test_no_path_is_ever_a_fault_of_ours(method, path, headers):
    async def main() -> None:
        async with open_runtime(host=ScriptedEngine()) as runtime:
            app = create_app(runtime)
            for prefix in ("/", "/v1/models/", "/admin/actors/"):
                answer = await call(app, method, prefix + path, headers=headers)
                assert answer.complete
                assert 200 <= answer.status < 500

    trio.run(main, clock=MockClock(autojump_threshold=0))
