"""What the OpenAPI document says of a chat's body is what its decoder does: near misses of every field, both ways."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata.errors import InvalidRequest
from strata.http.asked import asked
from strata.http.body import BodyDecoder
from strata.http.openapi import document
from strata.http.route import Route
from strata.http.schema import ChatBody, StrictChatBody
from strata.http.security import Access

KINDS = (ChatBody, StrictChatBody)


async def _view() -> Any: ...


@cache
def _document(kind: type) -> Any:
    """As it is served, for a route that takes this body."""
    route = Route(method="POST", rule="/", view=_view, access=Access.OPEN, summary="", body=kind)
    told = document([route], title="")
    schema = told["paths"]["/"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return {**schema, "components": told["components"]}


@cache
def _validator(kind: type) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(_document(kind))


@cache
def _decoder(kind: type) -> BodyDecoder[Any]:
    return BodyDecoder(kind, threads=None)  # nothing here is large enough for a thread


def _is_taken(body: Any, kind: type) -> bool:
    try:
        _decoder(kind).decode_now(json.dumps(body, ensure_ascii=False).encode())
    except InvalidRequest:
        return False
    return True


_numbers = st.sampled_from(
    [
        *(0, 1, -1, 2, 0.0, -0.0, 1.0, -1.0, 1.5, 0.5, 2.0, 1e-9, 1e300, 5e-324, 16, 17, 20, 20.0, 21, 21.0),
        *(-2, -2.0, -2.1, 2.1, 0.01, 0.0099, 10, 10.0, 10.01, 100, 100.0, 100.1, 101, -100, -100.0, -101, 128, 129.0),
        *(2**31 - 1, 2**31, float(2**31 - 1), float(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1),
        *(float(2**63), float(2**63 - 1024), float(-(2**63) + 1024), 2**64, 2**64 - 1, 2**70, -(2**70)),
    ]
)
_lengths = st.sampled_from([0, 1, 255, 256, 257, 1023, 1024, 1025])
_strings = st.builds(str.__mul__, st.sampled_from(["a", "é", "\U0001f600", "\0"]), _lengths)
_words = st.sampled_from(
    ["user", "assistant", "system", "developer", "tool", "User", "text", "json_object", "image_url", "1", "true", ""]
)
_plain = st.none() | st.booleans() | _numbers | _strings | _words
_token_names = st.sampled_from(
    [
        *("0", "1", "-0", "00", "01", "+1", "-1", "1.0", "1e1", " 1", "1\n", "", "a", "é"),
        *("2147483648", "9999999999", "10000000000", "18446744073709551616"),
    ]
)


def _near(schema: Any, root: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """What a schema allows, and what it only just doesn't."""
    if "$ref" in schema:
        return _near(root["components"]["schemas"][schema["$ref"].rpartition("/")[2]], root, depth)
    if "anyOf" in schema:
        return st.one_of(*(_near(each, root, depth) for each in schema["anyOf"]))
    if "properties" in schema:
        return _objects(schema, root, depth) | _plain
    if "propertyNames" in schema:
        return st.dictionaries(_token_names, _numbers | _plain, max_size=3) | _plain
    if schema.get("type") == "array":
        inner = _near(schema["items"], root, depth + 1) if "items" in schema else _plain
        counts = st.sampled_from([0, 1, 2, *((16, 17) if schema.get("maxItems") == 16 else ())])
        return counts.flatmap(lambda n: st.lists(inner, min_size=n, max_size=n)) | _plain
    return _fitting(schema) | _plain


def _fitting(schema: Any) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "integer" | "number":
            return _numbers
        case "string":
            return _strings
        case "boolean":
            return st.booleans()
    return st.sampled_from(schema["enum"]) if "enum" in schema else _plain


def _objects(schema: Any, root: Any, depth: int) -> st.SearchStrategy[Any]:
    """Few fields at a time, so that one that is wrong is seldom hidden by another."""
    near = {name: _near(each, root, depth + 1) for name, each in schema["properties"].items()}
    needed = {name: _right(name) for name in schema["required"]}
    some = st.sampled_from(sorted(near)).flatmap(lambda name: st.fixed_dictionaries({name: near[name]}))
    extra = st.dictionaries(st.sampled_from(["x", "Role", ""]), _plain, max_size=1)
    whole = st.builds(lambda *parts: {k: v for part in parts for k, v in part.items()}, st.fixed_dictionaries(needed))
    mixed = st.builds(lambda base, *parts: base | {k: v for part in parts for k, v in part.items()}, whole, some, extra)
    lacking = st.builds(
        lambda base, name: {k: v for k, v in base.items() if k != name}, mixed, st.sampled_from([*near])
    )
    return mixed | mixed | mixed | lacking


def _right(name: str) -> st.SearchStrategy[Any]:
    return {
        "messages": st.just([{"role": "user", "content": "a"}]),
        "role": st.just("user"),
        "type": st.just("text"),
        "text": st.just("a"),
    }[name]


CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_takes_what_the_decoder_takes_and_refuses_what_it_refuses(kind):
    """B60: one without the other would be a client that keeps to the document and is refused, or a lax server."""
    seen = {True: 0, False: 0}

    @settings(max_examples=500, deadline=None)
    @given(_near(_document(kind), _document(kind)))
    @example({**CHAT, "logit_bias": {"-0": 1}})
    @example({**CHAT, "logit_bias": {"9999999999": 1}})
    @example({**CHAT, "max_tokens": 1.0})
    @example({**CHAT, "seed": 2.0**63})
    @example({**CHAT, "stop": ["a"] * 17})
    def compare(body: Any) -> None:
        fits = _validator(kind).is_valid(body)
        seen[fits] += 1
        assert _is_taken(body, kind) == fits, body

    compare()
    assert min(seen.values()) > 80, seen


@pytest.mark.parametrize("name", sorted(ChatBody.__struct_fields__))
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_each_field_alone_is_taken_as_the_document_says(name, data):
    """B60: with everything else right."""
    schema = _document(ChatBody)
    field = schema["components"]["schemas"]["ChatBody"]["properties"][name]
    body = {**CHAT, name: data.draw(_near(field, schema))}
    assert _is_taken(body, ChatBody) == _validator(ChatBody).is_valid(body), body


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens", "top_k", "seed", "priority"])
def test_a_whole_number_may_be_written_with_a_point(name):
    body = _decoder(ChatBody).decode_now(json.dumps({**CHAT, "max_tokens": 9, name: 3.0}).encode())
    request = asked(body, request_id="r", priority=None, max_priority=100).request
    assert getattr(request, name) == 3
    assert type(getattr(request, name)) is int
