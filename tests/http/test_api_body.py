"""Bodies of chats: what is refused, and which field is named."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidRequest
from strata.http.asked import asked, header_priority
from strata.http.body import (
    BLOCK_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    OFF_LOOP_BYTES,
    BodyDecoder,
    check_shape,
    without_escapes,
)
from strata.http.schema import ChatBody, StrictChatBody

HELLO = [{"role": "user", "content": "hello"}]


def decoder(kind: type[ChatBody] = ChatBody) -> BodyDecoder[ChatBody]:
    return BodyDecoder(kind, trio.CapacityLimiter(1))


def decode(body: Any, kind: type[ChatBody] = ChatBody) -> ChatBody:
    return decoder(kind).decode_now(body if isinstance(body, bytes) else json.dumps(body).encode())


def wish(in_header: int | None = None, max_priority: int = 0, **named: Any) -> Any:
    body = decode({"messages": HELLO, **named})
    return asked(body, request_id="r", priority=in_header, max_priority=max_priority)


def refused(**named: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        wish(**named)
    return caught.value.param, str(caught.value)


def test_a_whole_body_becomes_the_request_that_it_asks_for():
    told = wish(
        model="m",
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        seed=-3,
        stop="x",
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
        frequency_penalty=1,
        presence_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"7": -100},
        n=1,
        user="u",
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        priority=-5,
        ignore_eos=True,
        min_tokens=2,
        return_progress=True,
        cache_prompt=False,
        unknown={"anything": [1]},
    )
    request = told.request
    assert (told.stream, told.include_usage, told.return_progress) == (True, True, True)
    assert (request.max_tokens, request.min_tokens, request.stop, request.seed) == (7, 2, ("x",), -3)
    assert (request.top_k, request.logprobs, request.logit_bias) == (0, 2, ((7, -100.0),))
    assert (request.priority, request.ignore_eos, request.repetition_penalty) == (-5, True, 1.1)


def test_what_is_null_counts_as_not_named():
    fields = [f.name for f in msgspec.structs.fields(ChatBody) if f.name not in ("messages", "model")]
    assert wish(**dict.fromkeys(fields)) == wish()


def test_parts_of_text_are_joined_by_line_ends():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert wish(messages=[{"role": "user", "content": parts}]).request.messages[0].content == "a\nb"


@pytest.mark.parametrize(
    ("named", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "wizard", "content": ""}]}, "messages[1].role"),
        ({"messages": [*HELLO, *HELLO, {"role": "user", "content": 3}]}, "messages[2].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": []}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "of no type"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{**HELLO[0], "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": HELLO * 4097}, "messages"),
        ({"model": 3}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": "7"}, "max_completion_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 2**200}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 2}, "n"),
        ({"user": []}, "user"),
        ({"tools": [{}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"priority": 101}, "priority"),
        ({"priority": 1}, "priority"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"ignore_eos": 0}, "ignore_eos"),
        ({"return_progress": "x"}, "return_progress"),
        ({"cache_prompt": 1}, "cache_prompt"),
    ],
)
def test_a_field_of_the_wrong_type_or_range_is_named(named, param):
    """B60: the client's own notation for the field at fault."""
    named_param, message = refused(**named)
    assert named_param == param
    assert message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{} {}",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b"\xef\xbb\xbf{}",
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 100_000 + b"}",
        b'{"x": ' + b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_is_no_json_or_no_number_is_the_clients_mistake(body):
    """B60: malformed bytes, broken text, numbers that are none."""
    with pytest.raises(InvalidRequest):
        decode(body)


def test_a_message_about_a_huge_value_is_short():
    _, message = refused(messages=[{"role": "x" * 1_000_000, "content": ""}])
    assert len(message) < 300


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_is_refused_from_the_65th_level(opening):
    """B60: also inside a field that nobody reads."""
    closing = "]" if opening == "[" else "}"

    def nested(depth: int) -> bytes:
        # The body itself is the first level.
        inner = opening * (depth - 1) + ("1" if opening != "[" else "") + closing * (depth - 1)
        return b'{"messages": %b, "x": %b}' % (json.dumps(HELLO).encode(), inner.encode())

    assert decode(nested(MAX_DEPTH)).messages
    with pytest.raises(InvalidRequest, match="64 levels"):
        decode(nested(MAX_DEPTH + 1))


def test_brackets_and_commas_inside_of_text_count_for_nothing():
    text = '[{,"\\' * MAX_VALUES
    assert wish(messages=[{"role": "user", "content": text}]).request.messages[0].content == text


def test_more_values_than_any_chat_needs_are_refused_before_they_are_decoded():
    check_shape(b"[" + b",".join([b"1"] * MAX_VALUES) + b"]")
    with pytest.raises(InvalidRequest, match="values"):
        check_shape(b"[" + b",".join([b"1"] * (MAX_VALUES + 1)) + b"]")
    with pytest.raises(InvalidRequest, match="values"):
        check_shape(b'""' * (2 * MAX_VALUES + 1))


@given(
    st.recursive(
        st.none() | st.text() | st.floats(allow_nan=False), lambda t: st.lists(t) | st.dictionaries(st.text(), t)
    )
)
def test_depth_and_values_are_counted_as_a_json_parser_would(value):
    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    encoded = msgspec.json.encode(value)
    padded = b"[" * (MAX_DEPTH - depth(value)) + encoded + b"]" * (MAX_DEPTH - depth(value))
    check_shape(padded)
    with pytest.raises(InvalidRequest):
        check_shape(b"[" + padded + b"]")


@given(st.lists(st.sampled_from(["\\", '"', "n", "[", "é"]), max_size=6).map("".join), st.integers(0, 9))
def test_escapes_are_found_across_the_ends_of_blocks(text, before):
    body = json.dumps("x" * (BLOCK_BYTES - before) + text + "]" * 100, ensure_ascii=False).encode()
    assert without_escapes(body).count(b'"') == 2
    check_shape(body)


def test_unknown_fields_are_ignored_unless_the_server_is_strict():
    bodies = {
        "store": {"messages": HELLO, "store": True},
        "messages[0].mood": {"messages": [{**HELLO[0], "mood": "good"}]},
        "messages[0].content[0].mood": {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "", "mood": 1}]}]
        },
        "stream_options.often": {"messages": HELLO, "stream_options": {"often": True}},
    }
    for param, body in bodies.items():
        assert decode(body)
        with pytest.raises(InvalidRequest) as caught:
            decode(body, StrictChatBody)
        assert caught.value.param == param


def test_the_strict_body_has_every_field_of_the_other():
    names = {f.name for f in msgspec.structs.fields(ChatBody)}
    assert {f.name for f in msgspec.structs.fields(StrictChatBody)} == names


def test_a_priority_in_the_body_wins_over_the_headers_and_lower_is_always_allowed():
    assert wish(in_header=-3).request.priority == -3
    assert wish(in_header=9, max_priority=5, priority=4).request.priority == 4
    assert wish(max_priority=-10).request.priority is None, "who names none is given one that is allowed"
    with pytest.raises(InvalidRequest) as caught:
        wish(in_header=9, max_priority=5)
    assert caught.value.param == "X-Request-Priority"


@pytest.mark.parametrize(("text", "number"), [("5", 5), (" -100 ", -100), ("+7", 7), (None, None)])
def test_the_priority_header_is_a_whole_number(text, number):
    assert header_priority(text) == number


@pytest.mark.parametrize("text", ["", "x", "1.5", "101", "-101", "9" * 5000, "٣", "1_0", "--1"])
def test_any_other_priority_header_is_refused(text):
    with pytest.raises(InvalidRequest) as caught:
        header_priority(text)
    assert caught.value.param == "X-Request-Priority"


async def test_a_large_body_is_decoded_on_a_thread_and_a_small_one_is_not():
    def body(size: int) -> bytes:
        return json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()

    with trio.testing.assert_checkpoints():
        assert await decoder().decode(body(10))
    threads = trio.CapacityLimiter(1)
    async with threads:
        # With no thread to be had only the small one is decoded.
        await BodyDecoder(ChatBody, threads).decode(body(OFF_LOOP_BYTES // 2))
        with trio.move_on_after(0.01) as scope:
            await BodyDecoder(ChatBody, threads).decode(body(OFF_LOOP_BYTES * 2))
        assert scope.cancelled_caught
    assert await BodyDecoder(ChatBody, threads).decode(body(OFF_LOOP_BYTES * 2))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_names = st.sampled_from([f.name for f in msgspec.structs.fields(ChatBody)])


@given(st.dictionaries(_names, _json, max_size=5), st.booleans())
def test_any_body_is_a_request_or_a_refusal(fields, whole):
    """B60: no value of any field gets past as anything else."""
    body = json.dumps({"messages": HELLO, **fields} if whole else fields).encode()
    with contextlib.suppress(InvalidRequest):
        assert asked(decode(body), request_id="r", priority=None, max_priority=0).request.messages
