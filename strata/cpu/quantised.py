"""Weights as a file holds them, made into float32.  Knows the layouts of blocks; no file, no model.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h; a block's elements are 32 neighbours of a row,
or 256 (`_K`), which then have several scales.
The arithmetic is done in the order of the `gguf` library, so the numbers equal its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

BLOCK: Final = 32
SUPER_BLOCK: Final = 256
"""Elements of a block, and of one of blocks that share a scale of scales."""

_CHUNK: Final = 1 << 18
"""Elements that are made at a time: enough to be fast, few enough that no second copy of a weight is held."""


class Stored(Protocol):
    """A weight as it lies in its file."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...


Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]


def _plain(kind: str) -> Callable[[Bytes, Floats], None]:
    def expand(blocks: Bytes, out: Floats) -> None:
        out[...] = blocks.view(kind)

    return expand


def _bf16(blocks: Bytes, out: Floats) -> None:
    """The upper half of a float32."""
    bits = out.view(np.uint32)
    np.left_shift(blocks.view("<u2"), np.uint32(16), out=bits, dtype=np.uint32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """f16 scale, 16 bytes of nibbles; low ones are elements 0-15.  (nibble - 8) * scale."""
    scale = _half(blocks, 0)
    _nibbles(blocks[:, 2:], out)
    out -= np.float32(8)
    out *= scale


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """f16 scale, f16 minimum, 16 bytes of nibbles.  nibble * scale + minimum."""
    scale, minimum = _half(blocks, 0), _half(blocks, 2)
    _nibbles(blocks[:, 4:], out)
    out *= scale
    out += minimum


def _q5_0(blocks: Bytes, out: Floats) -> None:
    """f16 scale, 32 fifth bits, 16 bytes of nibbles.  (value - 16) * scale."""
    scale = _half(blocks, 0)
    _nibbles(blocks[:, 6:], out)
    _add_fifth_bits(blocks[:, 2:6], out)
    out -= np.float32(16)
    out *= scale


def _q5_1(blocks: Bytes, out: Floats) -> None:
    """f16 scale, f16 minimum, 32 fifth bits, 16 bytes of nibbles.  value * scale + minimum."""
    scale, minimum = _half(blocks, 0), _half(blocks, 2)
    _nibbles(blocks[:, 8:], out)
    _add_fifth_bits(blocks[:, 4:8], out)
    out *= scale
    out += minimum


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """f16 scale, 32 signed bytes."""
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out)


def _q4_k(blocks: Bytes, out: Floats) -> None:
    """f16 scale, f16 scale of minima, 12 bytes of both, 128 bytes of nibbles.  nibble * scale - minimum."""
    _scale_eighths(blocks, _paired_nibbles(blocks[:, 16:]), out)


def _q5_k(blocks: Bytes, out: Floats) -> None:
    """The same with 32 bytes of fifth bits before the nibbles: bit b of byte i is that of element 32 b + i."""
    bits = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2)
    _scale_eighths(blocks, _paired_nibbles(blocks[:, 48:]) + (bits << 4), out)


def _paired_nibbles(packed: Bytes) -> Bytes:
    """(blocks, 8, 32): of each 32 bytes the low nibbles are one eighth, the high ones the next."""
    raw = packed.reshape(-1, 4, 32)
    return np.stack((raw & 15, raw >> 4), axis=2).reshape(-1, 8, 32)


def _scale_eighths(blocks: Bytes, codes: Bytes, out: Floats) -> None:
    scales, minima = _packed_scales(blocks[:, 4:16])
    result = out.reshape(codes.shape)
    np.multiply(codes, (scales * _half(blocks, 0))[:, :, None], out=result)
    result -= (minima * _half(blocks, 2))[:, :, None]


def _packed_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of six bits: the upper pairs of the last four hang at the first four's bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (third & 15) | (first >> 6 << 4)), axis=1)
    return scales, np.concatenate((second & 63, (third >> 4) | (second >> 6 << 4)), axis=1)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """128 bytes of low nibbles, 64 of upper pairs, 16 signed scales, f16 scale.  (value - 32) * scale, one for 16."""
    raw = blocks[:, :128].reshape(-1, 2, 64)
    low = np.stack((raw & 15, raw >> 4), axis=2).reshape(-1, 2, 4, 32)
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    codes = low | ((pairs >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3) << 4
    scales = blocks[:, 192:208].view(np.int8) * _half(blocks, 208)
    np.multiply(
        codes.astype(np.int8).reshape(-1, 16, 16) - np.int8(32), scales[:, :, None], out=out.reshape(-1, 16, 16)
    )


def _half(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes, out: Floats) -> None:
    out[:, :16] = packed & 15
    out[:, 16:] = packed >> 4


def _add_fifth_bits(packed: Bytes, out: Floats) -> None:
    out += np.unpackbits(packed, axis=1, bitorder="little") * np.float32(16)


@frozen
class _Kind:
    """`size` bytes make `elements` numbers, by `expand`."""

    size: int
    elements: int
    expand: Callable[[Bytes, Floats], None]


_KINDS: Final[Mapping[str, _Kind]] = {
    "F32": _Kind(4, 1, _plain("<f4")),
    "F16": _Kind(2, 1, _plain("<f2")),
    "BF16": _Kind(2, 1, _bf16),
    "Q4_0": _Kind(18, BLOCK, _q4_0),
    "Q4_1": _Kind(20, BLOCK, _q4_1),
    "Q5_0": _Kind(22, BLOCK, _q5_0),
    "Q5_1": _Kind(24, BLOCK, _q5_1),
    "Q8_0": _Kind(34, BLOCK, _q8_0),
    "Q4_K": _Kind(144, SUPER_BLOCK, _q4_k),
    "Q5_K": _Kind(176, SUPER_BLOCK, _q5_k),
    "Q6_K": _Kind(210, SUPER_BLOCK, _q6_k),
}


def float32_bytes(tensor: Stored) -> int:
    """Memory that the weight takes when expanded."""
    return math.prod(tensor.shape) * 4


def expand(tensor: Stored, out: Floats, start: int = 0) -> None:
    """Write numbers of the weight to `out` (C order): as many rows as `out` has, from row `start` on.

    A row is the last axis.  Raises ValueError for an unknown kind, and where the bytes don't make exactly the shape.
    """
    kind = _kind_of(tensor)
    columns = tensor.shape[-1]
    row_blocks, rest = divmod(columns, kind.elements)
    blocks = tensor.data.reshape(-1).view(np.uint8)
    if rest or blocks.nbytes * kind.elements != math.prod(tensor.shape) * kind.size:
        raise ValueError(f"{tensor.name}: {blocks.nbytes} bytes of {tensor.kind} don't make {tensor.shape}")
    numbers = out.reshape(-1, kind.elements)
    first = start * row_blocks
    blocks = blocks.reshape(-1, kind.size)[first : first + len(numbers)]
    step = _CHUNK // kind.elements
    with np.errstate(all="ignore"):  # what a damaged file makes is seen at the logits
        for at in range(0, len(numbers), step):
            kind.expand(blocks[at : at + step], numbers[at : at + step])


def _kind_of(tensor: Stored) -> _Kind:
    try:
        return _KINDS[tensor.kind]
    except KeyError:
        raise ValueError(f"{tensor.name}: weights of kind {tensor.kind} can't be expanded") from None
