"""Whatever a program hands in: it is served or refused by the name of its field, and nobody else hears of it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_runtime import Scene, scripted

from strata.errors import InvalidRequest
from strata.messages import Request

NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, -(10**400), 2**31, 2**63, 1e-46, 3.0]))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.binary(max_size=5))
LISTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))
JUNK = LISTS | st.dictionaries(st.one_of(st.integers(0, 300), st.text(max_size=5)), SCALARS, max_size=3)
FIELDS = st.sampled_from([field.name for field in attrs.fields(Request)])
HELLO = [{"role": "user", "content": "hello"}]


async def ask(scene: Scene, messages: Any, named: dict[str, Any]) -> None:
    async with scene.runtime.chat(messages, **named) as stream:
        await stream.text()


async def the_refusal(scene: Scene, messages: Any, named: dict[str, Any]) -> InvalidRequest | None:
    try:
        await ask(scene, messages, named)
    except InvalidRequest as error:
        return error
    return None


async def try_junk(tries: list[tuple[str, Any]]) -> None:
    async with scripted(default_max_tokens=3) as scene:
        for field, value in tries:
            messages = value if field == "messages" else HELLO
            refused = await the_refusal(scene, messages, {} if field == "messages" else {field: value})
            assert refused is None or str(refused.param).startswith(field)
            assert scene.runtime.health().ready
        await ask(scene, HELLO, {})
        assert scene.is_empty()


MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "name"]), JUNK | st.just("user"))
TRY = st.tuples(FIELDS, JUNK) | st.tuples(st.just("messages"), st.lists(MESSAGE, min_size=1, max_size=2))


@given(tries=st.lists(TRY, min_size=1, max_size=12))
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_for_any_field_is_served_or_refused_and_the_runtime_stays_ready(tries: list[tuple[str, Any]]) -> None:
    trio.run(try_junk, tries, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("named", [{"max_tokens": 3.0}, {"stop": 5}, {"stop": [5]}, {"logit_bias": {"7": 1}}])
async def test_a_wrong_type_is_refused_where_the_block_is_entered(named: Any, autojump_clock: Any) -> None:
    async with scripted() as scene:
        refused = await the_refusal(scene, HELLO, named)
        assert refused is not None
        assert refused.param in named
        await ask(scene, HELLO, {"max_tokens": 2})


async def test_none_stands_for_a_field_that_is_not_named(autojump_clock: Any) -> None:
    named = {field.name: None for field in attrs.fields(Request) if field.name not in ("messages", "max_tokens")}
    async with scripted() as scene:
        await ask(scene, HELLO, {**named, "max_tokens": 2})
