"""Weights of every kind as a file holds them, and their numbers as the `gguf` library reads them."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType

SUPER_BLOCKS = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
"""Bytes of 256 numbers, of the kinds that the library can read and not write."""
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, **SUPER_BLOCKS}
"""Of 32 numbers, or 256."""
KINDS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *SUPER_BLOCKS]


def random_rows(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)


def random_bytes(kind: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """(rows, bytes of a row) that mean something."""
    if kind not in SUPER_BLOCKS:
        values = random_rows(rows, columns, seed) / np.float32(np.sqrt(columns))
        raw = np.ascontiguousarray(gguf.quantize(values, GGMLQuantizationType[kind]))
        return raw.view(np.uint8).reshape(rows, -1)
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (rows * columns // 256, SUPER_BLOCKS[kind]), np.uint8)
    at = 208 if kind == "Q6_K" else 0
    scales = random.random((len(raw), 1 if at else 2)).astype(np.float16) * np.float16(0.01)
    raw[:, at : at + 2 * scales.shape[1]] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


def numbers_of(kind: str, raw: np.ndarray, columns: int) -> np.ndarray:
    """As the library reads them."""
    if kind in ("F32", "F16"):
        return raw.view("<f4" if kind == "F32" else "<f2").astype(np.float32)
    return gguf.dequantize(raw, GGMLQuantizationType[kind]).astype(np.float32).reshape(len(raw), columns)
