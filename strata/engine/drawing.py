"""Drawing a token from logits: what a device must do exactly, and what does it where no device does.

A room of its own because the same request must get the same token whoever draws it: the host, a compiled kernel or a
card.  So weights are whole numbers, whose sums are the same in any order, and what makes them of logits is a few
operations of float32, each rounded by itself.  `drawn` is the definition: `cuda/draw.cu` and `strata/cpu/native/draw.c`
give the same token, bit for bit.  Knows no setting of a request, but as `Draw` says it.

A weight is 2^40 times the likelihood beside that of the likeliest token, rounded down: what is a million million times
less likely is never drawn.  Its relative error is some 3e-6 at most, that of one product in float32.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.draws import ALL, Draw
from strata.models.architecture import Logits

Weights = NDArray[np.int64]
Ids = NDArray[np.intp]

WHOLE: Final = 1 << 40
"""The weight of the likeliest."""

_POWERS: Final = (0.6931513, 0.24016444, 0.055799913, 0.00901703, 0.0018671302)
"""2^f = 1 + f * (_POWERS[0] + f * (...)) for f from 0 to 1, to 1.5e-7; fitted for the least relative error."""

_BIAS: Final = 127
"""Of a float32's exponent."""

_LEAST_EXPONENT: Final = -62.0
"""Nothing is left of a weight long before."""

_LARGEST_SCALE: Final = 2.0**126
_SMALLEST_SCALE: Final = 2.0**-126
"""Of float32, without those that are less exact."""

_TOGETHER: Final = 8192
"""Weights that are made at a time: what is made on the way stays in the nearest cache."""

_NUCLEUS_SIZES: Final = (64, 1024)
"""How many of the likeliest are tried before all are sorted: a nucleus is nearly always small."""


def scale_of(temperature: float) -> float:
    """What makes exponents of 2 of the logits' distances from the largest, at this temperature (above 0); a float32."""
    scale = math.log2(math.e) / temperature if temperature > 1 / _LARGEST_SCALE else _LARGEST_SCALE
    return float(np.float32(min(max(scale, _SMALLEST_SCALE), _LARGEST_SCALE)))


def drawn(logits: Logits, draw: Draw, position: int) -> int:
    """The token at `position` that `draw` picks of logits (float32, one for each token); the largest must be finite.

    Of equally likely tokens the lowest id counts as the likelier one.
    """
    best = int(np.argmax(logits))
    if draw.keep == 1:
        return best
    weights = weights_of(logits, draw.scale)
    if 0 < draw.keep < len(logits):
        weights = _only(likeliest(logits, draw.keep), weights)
    if draw.nucleus < ALL:
        weights = _only(_nucleus(logits, weights, draw.nucleus), weights)
    if draw.least > 0:
        weights = weights * (weights >= draw.least)
    sums = np.cumsum(weights, out=weights)
    return int(np.searchsorted(sums, random_bits(draw.seed, position) * int(sums[-1]) >> 64, side="right"))


def random_bits(seed: int, position: int) -> int:
    """64 bits that depend on the two alone, and on nothing that was drawn before.

    NumPy counts before it computes: its Philox with this counter computes of position + 1.
    """
    return int(np.random.Philox(key=seed, counter=position).random_raw())


def weights_of(logits: Logits, scale: float) -> Weights:
    """Of each token; the likeliest weighs WHOLE."""
    largest, weights = logits.max(), np.empty(len(logits), np.int64)
    for at in range(0, len(logits), _TOGETHER):
        some = slice(at, at + _TOGETHER)
        weights[some] = _weights_beside(largest, logits[some], np.float32(scale))
    return weights


def _weights_beside(largest: np.float32, logits: Logits, scale: np.float32) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        exponents = (logits - largest) * scale
    np.maximum(exponents, np.float32(_LEAST_EXPONENT), out=exponents)
    whole = np.floor(exponents)
    rest = np.subtract(exponents, whole, out=exponents)
    powers = np.full(len(rest), _POWERS[-1], np.float32)
    for factor in (*_POWERS[-2::-1], 1.0):
        powers *= rest
        powers += np.float32(factor)
    # Of 2^whole, that times WHOLE, the bits of a float32: its product loses nothing.
    powers *= (whole.astype(np.int32) + (_BIAS + 40) << 23).view(np.float32)
    return powers


def _only(some: Ids, weights: Weights) -> Weights:
    """Without the others."""
    kept = np.zeros_like(weights)
    kept[some] = weights[some]
    return kept


def _nucleus(logits: Logits, weights: Weights, nucleus: int) -> Ids:
    """The fewest of the likeliest that hold so many 2^64ths of the whole weight; at least one.

    The order is that of the logits: weights that differ in nothing may come of other logits.
    """
    goal = -(-int(weights.sum()) * nucleus >> 64)
    for size in (*_NUCLEUS_SIZES, len(weights)):
        first = likeliest(logits, size)
        sums = np.cumsum(weights[first])
        if sums[-1] >= goal:
            break
    return first[: int(np.searchsorted(sums, goal, side="left")) + 1]


def likeliest(logits: Logits, n: int) -> Ids:
    """The indices of the n largest, largest first, of equals the lowest index first; all of them if n is more."""
    if n >= len(logits):
        return np.argsort(-logits, kind="stable")
    edge = np.partition(logits, len(logits) - n)[len(logits) - n]
    near = np.nonzero(logits >= edge)[0]
    return near[np.argsort(-logits[near], kind="stable")][:n]
