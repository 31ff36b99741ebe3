"""A fingerprint has a name for each part of the state, and a part's hash changes when that part does."""

from __future__ import annotations

import attrs
import pytest
from drive import GREEDY, prompt

from strata.engine.fingerprint import digests, engine_parts
from strata.engine.sequence import HalfChunk, Sequence
from strata.messages import Open, Seq


def sequence(seq: int = 1, **named: object) -> Sequence:
    return Sequence(Open(Seq(seq), prompt(1, 20), attrs.evolve(GREEDY, **named)), chunk_tokens=16, page_tokens=4)


def half_chunk(done: int) -> HalfChunk:
    return HalfChunk(index=0, start=0, end=16, total=3, slices=(_ for _ in ()), workspace=None, done=done)


def changed(one: Sequence, other: Sequence) -> set[str]:
    """The names of the parts in which the two differ."""
    before, after = digests(engine_parts(one)), digests(engine_parts(other))
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_equal_states_have_equal_fingerprints_whoever_has_them():
    assert changed(sequence(1), sequence(2)) == set()


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"position": 16}, {"position"}),
        ({"position": 20, "written": [7]}, {"position", "tokens", "sampler"}),
        ({"written": [7]}, set()),
        ({"chunk": half_chunk(1)}, {"chunk"}),
        ({"pages": [1, 2]}, set()),
    ],
    ids=["position", "a token", "a token that is still to be repeated", "a half-done chunk", "pages"],
)
def test_a_change_shows_in_its_own_part(change: dict[str, object], parts: set[str]):
    other = sequence()
    for name, value in change.items():
        setattr(other, name, value)
    assert changed(sequence(), other) == parts


def test_every_slice_of_a_chunk_has_a_fingerprint_of_its_own():
    one, two = sequence(), sequence()
    one.chunk, two.chunk = half_chunk(1), half_chunk(2)
    assert changed(one, two) == {"chunk"}


def test_other_sampling_is_another_sampler():
    assert changed(sequence(), sequence(seed=1)) == {"sampler"}


def test_the_models_own_parts_stand_beside_the_engines():
    both = digests({"tokens": [b"a"]}, {"kv": [b"b", memoryview(b"c")]})
    assert both.keys() == {"tokens", "kv"}
    assert both["kv"] == digests({"kv": [b"bc"]})["kv"]
