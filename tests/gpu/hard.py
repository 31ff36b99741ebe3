"""Numbers that arithmetic stumbles over, and weights of every format."""

from __future__ import annotations

import gguf
import numpy as np

from strata.models.config import RawTensor

Floats = np.ndarray

MAGNITUDES = {
    "plain": lambda random, shape: random.standard_normal(shape),
    "large": lambda random, shape: random.standard_normal(shape) * 1e15,
    "denormal": lambda random, shape: random.standard_normal(shape) * 1e-39,
    "small": lambda random, shape: random.standard_normal(shape) * 10.0 ** random.uniform(-9, -2, shape),
    "mixed": lambda random, shape: random.standard_normal(shape) * 10.0 ** random.uniform(-12, 12, shape),
}


def rows(count: int, width: int, seed: int = 0, magnitude: str = "plain") -> Floats:
    return MAGNITUDES[magnitude](np.random.default_rng(seed), (count, width)).astype(np.float32)


def tensor(outputs: int, columns: int, kind: str = "F32", seed: int = 0, magnitude: str = "plain") -> RawTensor:
    """A weight; of the K formats, which nobody here can write, with blocks of random bits."""
    if kind.endswith("_K"):
        return RawTensor("w", kind, (outputs, columns), random_blocks(outputs, columns, kind, seed))
    data = gguf.quantize(rows(outputs, columns, seed, magnitude), gguf.GGMLQuantizationType[kind])
    return RawTensor("w", kind, (outputs, columns), np.ascontiguousarray(data).reshape(-1).view(np.uint8))


SCALES = {
    **{"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]},
    **{"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]},
}
"""Where in a block its float16 lie."""


def random_blocks(outputs: int, columns: int, kind: str, seed: int = 0) -> Floats:
    """Bytes of all values, but for scales that are finite: usual ones, denormal ones, zeros, the largest."""
    random = np.random.default_rng(seed)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (outputs * columns // elements, size), np.uint8)
    for at in SCALES[kind]:
        some = random.choice([0.0, 6e-8, -3e-6, 0.01, -0.3, 1.7, 1000.0], len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = some.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def rounded(numbers: Floats, to: str) -> Floats:
    """To the nearest number of 16 bits, of two the even one; float32 stays as it is."""
    if to == "f32":
        return numbers
    if to == "f16":
        with np.errstate(over="ignore"):
            return numbers.astype(np.float16).astype(np.float32)
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def exact_product(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """x weights^T in float64, and the sizes of all that was added, by which a sum may be wrong."""
    wide, matrix = x.astype(np.float64), weights.astype(np.float64)
    return wide @ matrix.T, np.abs(wide) @ np.abs(matrix).T


def opened(left: Floats, activation: str) -> tuple[Floats, Floats]:
    """How far gates open, in float64: x / (1 + e^-y), and y."""
    exponent = left if activation == "silu" else 2 * np.sqrt(2 / np.pi) * (left + 0.044715 * left**3)
    with np.errstate(over="ignore"):
        opening: Floats = left / (1 + np.exp(-exponent))
    return opening, exponent


def agree(got: Floats, exact: Floats, size: Floats, additions: int) -> None:
    """Each is within what so many float32 additions of numbers of that size may lose."""
    bound = size * (additions + 8) * 2.0**-24 + 1e-44
    wrong = np.abs(got.astype(np.float64) - exact) > bound
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size}, the first at {np.argwhere(wrong)[0]}"
