"""Every message arrives as it was sent, however the bytes are cut; what is no message is an error with a name."""

from __future__ import annotations

import contextlib
import struct
import types
import typing
from typing import Any, Literal, get_args, get_origin

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.drive import Ping, Pong
from strata.engine.spec import EngineSpec
from strata.engine.wire import MAX_FRAME, Begin, CouldNotStart, Frames, WireError, encode
from strata.messages import FromEngine, Open, Sampling, Seq, SeqFailed, Stop, ToEngine, Took

KINDS = [*get_args(ToEngine), *get_args(FromEngine), Begin, CouldNotStart, Ping, Pong]

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a message's field, or whole messages."""
    if isinstance(kind, typing.NewType):
        return values(kind.__supertype__)
    if kind is EngineSpec:
        return st.builds(EngineSpec, SIMPLE[str], st.dictionaries(st.text(max_size=5), PLAIN, max_size=3))
    if attrs.has(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{field.name: values(hints[field.name]) for field in attrs.fields(kind)})
    if get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of([values(one) for one in get_args(kind)])
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        inner = [one for one in get_args(kind) if one is not ...]
        several = st.lists(values(inner[0]), max_size=4).map(tuple)
        return several if ... in get_args(kind) else st.tuples(*map(values, inner))
    return SIMPLE[kind]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(kind: type[Any], data: st.DataObject) -> None:
    message = data.draw(values(kind))
    frames = Frames()
    frames.feed(encode(message))
    came = frames.take()
    assert came == message
    assert type(came) is type(message)
    assert frames.take() is None


def test_numbers_that_are_more_than_that_arrive_as_what_they_are() -> None:
    """As NumPy's are: whoever calls from a program may have them."""

    class Whole(int):
        pass

    sampling = Sampling(temperature=np.float64(0.7), top_p=np.float64(0.9), top_k=Whole(3))
    frames = Frames()
    frames.feed(encode(Open(Seq(1), (1, 2), sampling)))
    came = frames.take()
    assert came == Open(Seq(1), (1, 2), Sampling(temperature=0.7, top_p=0.9, top_k=3))
    assert type(came.sampling.temperature) is float
    assert type(came.sampling.top_k) is int


@settings(max_examples=50)
@given(st.data())
def test_messages_come_whole_and_in_order_however_their_bytes_are_cut(data: st.DataObject) -> None:
    sent = data.draw(st.lists(st.one_of([values(kind) for kind in KINDS]), max_size=8))
    stream = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=10)))
    frames, came = Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames.feed(stream[start:end])
        while (message := frames.take()) is not None:
            came.append(message)
    assert came == sent


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_an_error_with_a_name_and_nothing_else(junk: bytes) -> None:
    """Or they are the beginning of one that has not come whole, or happen to be one."""
    frames = Frames()
    frames.feed(junk)
    with contextlib.suppress(WireError):
        while frames.take() is not None:
            pass


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (struct.pack(">IB", MAX_FRAME + 1, 2), "a message of 67,108,865 bytes"),
        (struct.pack(">IB", 0, 200), "the unknown type 200"),
        (struct.pack(">IB", 1, 12) + b"\xc0", "a Took that is none"),
        (struct.pack(">IB", 7, 12) + msgspec.msgpack.encode({"n": "x"})[:4] + b"\xff\xff\xff", "a Took that is none"),
    ],
)
def test_what_is_too_long_unknown_or_of_the_wrong_shape_is_named(frame: bytes, says: str) -> None:
    frames = Frames()
    frames.feed(frame)
    with pytest.raises(WireError, match=says):
        frames.take()


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Sampling(), "Sampling is no message"),
        (Took(2**64), "Took can't be sent"),
        (Begin(spec=EngineSpec("m:f", {"path": object()}), incarnation=1), "Begin can't be sent"),
        (Begin(spec=EngineSpec("m:f", {"much": bytes(MAX_FRAME)}), incarnation=1), "Begin is too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_sent_is_named_too(message: Any, says: str) -> None:
    with pytest.raises(WireError, match=says):
        encode(message)


def test_an_error_that_quotes_what_is_no_character_is_sent_all_the_same() -> None:
    frames = Frames()
    frames.feed(encode(SeqFailed(Seq(1), "no file \udcff")))
    assert frames.take() == SeqFailed(Seq(1), "no file \\udcff")


def test_the_longest_prompt_is_far_from_too_long() -> None:
    frame = encode(Open(Seq(1), tuple(range(1 << 20)), Sampling()))
    assert 10 * len(frame) < MAX_FRAME
    frames = Frames()
    for start in range(0, len(frame), 1 << 16):
        assert frames.take() is None
        frames.feed(frame[start : start + (1 << 16)])
    assert frames.take().tokens[-1] == (1 << 20) - 1
    frames.feed(encode(Stop()))
    assert frames.take() == Stop()
