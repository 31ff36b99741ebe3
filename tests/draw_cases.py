"""Logits and draws of all kinds, for whoever draws."""

from __future__ import annotations

import attrs
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strata.draws import ALL, Draw
from strata.engine.drawing import WHOLE, random_bits, scale_of, weights_of

EVERYTHING = Draw(scale=scale_of(1.0), keep=0, nucleus=ALL, least=0, seed=0)

LARGEST = Draw(scale=1.0, keep=1, nucleus=ALL, least=0, seed=0)


LOW = next(seed for seed in range(10_000) if random_bits(seed, 0) / 2**64 < 0.01)
HIGH = next(seed for seed in range(10_000) if random_bits(seed, 0) / 2**64 > 0.99)
"""With these the first of a few tokens is drawn at position 0, and the last."""

EDGES = (
    # Half of the whole is one of two; a little more takes the other.
    ([0.0, 0.0], {"nucleus": 1 << 63, "seed": HIGH}, 0),
    ([0.0, 0.0], {"nucleus": (1 << 63) + 1, "seed": HIGH}, 1),
    ([5.0, 6.0, 6.0], {"nucleus": 0, "seed": HIGH}, 1),
    # The cut falls among equals, and between two zeros.
    ([1.0, 2.0, 2.0, 2.0], {"keep": 2, "seed": HIGH}, 2),
    ([1.0, 2.0, 2.0, 2.0], {"keep": 2, "nucleus": ALL - 1, "seed": HIGH}, 2),
    ([-0.0, 0.0, -0.0, 0.0], {"keep": 3, "seed": HIGH}, 2),
    # What only just weighs enough.
    ([0.0, 1.0], {"scale": 1.0, "least": WHOLE // 2, "seed": LOW}, 0),
    ([0.0, 1.0], {"scale": 1.0, "least": WHOLE // 2 + 1, "seed": LOW}, 1),
    # The last that weighs anything.
    ([0.0, 0.0, -1000.0], {"seed": HIGH}, 1),
)
"""Logits, what is special in the draw, and the token at position 0."""


def weighed() -> tuple[np.ndarray, list[Draw], list[int]]:
    """Rows whose tokens at position 0 tell the weight of their first logit to the last bit: it just weighs enough to be
    drawn, and then, one more being asked, it doesn't."""
    first = -np.random.default_rng(1).uniform(0, 2, 400).astype(np.float32)
    rows = np.stack([first, np.zeros_like(first)], axis=1).repeat(2, axis=0)
    scale = scale_of(0.7)
    enough = [int(weights_of(row, scale)[0]) + more for row, more in zip(rows, (0, 1) * len(first), strict=True)]
    return rows, [Draw(scale, 0, ALL, least, LOW) for least in enough], [0, 1] * len(first)


def edges() -> list[tuple[np.ndarray, Draw, int]]:
    return [(np.array([row], np.float32), attrs.evolve(EVERYTHING, **told), token) for row, told, token in EDGES]


def logits(count: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    """Of so many tokens: usual ones, some that are equal, some that are far from each other or nearly the same."""
    elements = (
        st.floats(-30, 30, width=32),
        st.integers(-3, 3).map(float),
        st.sampled_from([0.0, -0.0]),
        st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 3e38, -3e38]),
    )
    return st.one_of(*(arrays(np.float32, count, elements=some) for some in elements))


def many_logits(seed: int, count: int, spread: float, step: float) -> np.ndarray:
    """In steps, so that some are equal."""
    numbers = spread * np.random.default_rng(seed).standard_normal(count)
    return (np.round(numbers / step) * step).astype(np.float32)


_scales = st.one_of(st.floats(0.05, 5), st.sampled_from([1e-300, 1e-38, 1e38, 1e300])).map(scale_of)

draws = st.builds(
    Draw,
    scale=st.one_of(st.just(1.0), _scales),
    keep=st.one_of(st.just(0), st.integers(1, 40)),
    nucleus=st.one_of(st.just(ALL), st.sampled_from([0, 1, 1 << 63, (1 << 63) + 1, ALL - 1]), st.integers(0, ALL)),
    least=st.one_of(st.just(0), st.sampled_from([1, WHOLE // 2, WHOLE]), st.integers(0, WHOLE)),
    seed=st.integers(0, ALL),
)
