"""The definition of a draw, beside a plainer one; and that it is exact, so that others can be held to it."""

from __future__ import annotations

import math

import attrs
import numpy as np
import pytest
from draw_cases import EVERYTHING, HIGH, draws, edges, logits
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.draws import ALL, Draw
from strata.engine.drawing import WHOLE, drawn, random_bits, scale_of, weights_of

unhurried = settings(deadline=None)


def plainly(weights: list[int], order: list[int], draw: Draw, bits: int) -> int:
    """What `Draw` says, one token after the other, in whole numbers.  `order`: the likeliest first."""
    if draw.keep:
        order = order[: draw.keep]
    if draw.nucleus < ALL:
        kept, goal = [], draw.nucleus * sum(weights[token] for token in order)
        for token in order:
            kept.append(token)
            if sum(weights[one] for one in kept) << 64 >= goal:
                break
        order = kept
    order = sorted(token for token in order if weights[token] >= draw.least)
    place, end = bits * sum(weights[token] for token in order), 0
    for token in order:
        end += weights[token]
        if place < end << 64:
            return token
    raise AssertionError("nothing lies there")


@settings(unhurried, max_examples=500)
@given(logits(st.integers(1, 40)), draws, st.integers(0, 2**31))
def test_a_token_is_drawn_as_whole_numbers_say(row, draw, position):
    weights = weights_of(row, draw.scale).tolist()
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    token = drawn(row, draw, position)
    assert token == plainly(weights, order, draw, random_bits(draw.seed, position))
    assert weights[token] > 0


@unhurried
@given(st.integers(0, 99), st.floats(0.05, 5))
def test_weights_are_powers_of_two_to_a_few_millionths(seed, temperature):
    row = (8 * np.random.default_rng(seed).standard_normal(1000)).astype(np.float32)
    exact = WHOLE * np.exp((row.astype(np.float64) - row.max()) / temperature)
    got = weights_of(row, scale_of(temperature))
    assert (np.abs(got - exact) <= 4e-6 * exact + 1).all()
    assert got.max() == WHOLE


@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1.0, 1e300, 1e308])
def test_no_temperature_makes_a_number_that_is_none(temperature):
    """Weights of the likeliest, of one far from it, of one that may not come."""
    likeliest, far, masked = weights_of(np.array([5.0, -3e38, -math.inf], np.float32), scale_of(temperature)).tolist()
    assert likeliest == WHOLE
    assert 0 <= far <= WHOLE
    assert masked == 0


@pytest.mark.parametrize(("rows", "draw", "token"), edges(), ids=str)
def test_a_token_at_an_edge_belongs_to_one_side(rows, draw, token):
    assert drawn(rows[0], draw, 0) == token


def test_a_vocabulary_may_have_millions_of_equally_likely_tokens():
    row = np.zeros(1 << 22, np.float32)
    assert drawn(row, attrs.evolve(EVERYTHING, seed=HIGH), 0) > 0.99 * len(row)


# -- random bits ----------------------------------------------------------------------------------------------------


@unhurried
@given(st.integers(0, 2**64 - 2), st.integers(0, 2**40))
def test_random_bits_depend_on_seed_and_position_alone(seed, position):
    """B54: whatever was drawn before, and for whom."""
    first = random_bits(seed, position)
    random_bits(seed, position + 1)
    random_bits(seed + 1, position)
    assert random_bits(seed, position) == first
    assert 0 <= first < 2**64


def test_random_bits_are_the_same_on_every_machine():
    assert [random_bits(0, 0), random_bits(42, 7), random_bits(2**64 - 1, 10**6)] == [
        213000021201967259,
        7515455408940056460,
        8511798918288673138,
    ]


def test_random_bits_of_other_positions_and_seeds_are_independent():
    count = 4000
    for numbers in (
        np.array([random_bits(1, position) / 2.0**64 for position in range(count)]),
        np.array([random_bits(seed, 9) / 2.0**64 for seed in range(count)]),
    ):
        assert abs(numbers.mean() - 0.5) < 6 * math.sqrt(1 / 12 / count)
        assert len(set(numbers)) == count
        for lag in (1, 2, 7):
            assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 6 / math.sqrt(count)
    other = np.array([random_bits(2, position) / 2.0**64 for position in range(count)])
    one = np.array([random_bits(1, position) / 2.0**64 for position in range(count)])
    assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(count)
