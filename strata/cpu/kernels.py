"""What is done to each row by itself: norms, products, gates, rotations.  Knows rows; no cache and no sequence.

Two forms of each, because a product's bits follow from its shape (BLAS picks kernels and splits sums by it):
`TileKernels` takes whole tiles of 64 rows and calls everything with that one shape; `RowKernels` takes one row at a
time, one GEMV a block.  So a row's result depends on nothing but itself.  Sums run over C-ordered rows of one length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.cpu.matrix import Activation, Blocked, Gated
from strata.cpu.workers import Job, Scratch, Workers

TILE: Final = 64
"""Rows of a tile.  One core runs 32 rows at 70 GFLOP/s, 64 at 80, 128 at 86; a short prompt pays for whole tiles."""

_TABLE_ROWS: Final = 4096
"""Positions whose angles are computed at a time."""

Floats = NDArray[np.float32]
Table = NDArray[np.complex64]


def rotation_table(context: int, turned: int, theta: float, factors: Sequence[float] = (), scale: float = 1.0) -> Table:
    """scale * e^(i * position * theta^(-2k / turned) / factor k) for k < turned / 2, in rows of positions; made in
    float64.

    https://arxiv.org/abs/2104.09864, equation 15.  Rounded up to whole tiles of positions.
    """
    speeds = theta ** (-np.arange(0, turned, 2, dtype=np.float64) / turned)
    if factors:
        speeds /= np.array(factors, np.float64)
    angles: Table = np.empty((_whole_tiles(context), len(speeds)), np.complex64)
    # Piece by piece: float64 takes twice the room, and more of it in between.
    for first in range(0, len(angles), _TABLE_ROWS):
        rows = angles[first : first + _TABLE_ROWS]
        positions = np.arange(first, first + len(rows), dtype=np.float64)
        rows[...] = scale * np.exp(1j * np.outer(positions, speeds))
    return angles


def rotation_bytes(context: int, turned: int) -> int:
    """Memory that `rotation_table` makes."""
    return _whole_tiles(context) * -(-turned // 2) * np.dtype(np.complex64).itemsize


def _whole_tiles(rows: int) -> int:
    return -(-rows // TILE) * TILE


def _norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    np.multiply(x, x, out=out)
    scale = np.add.reduce(out, axis=-1, keepdims=True)
    scale /= np.float32(x.shape[-1])
    scale += np.float32(eps)
    np.sqrt(scale, out=scale)
    np.divide(x, scale, out=out)
    out *= weight


def _add_norm(x: Floats, weight: Floats, eps: float, out: Floats) -> None:
    normed = np.empty(x.shape, np.float32)
    _norm(x, weight, eps, normed)
    out += normed


def _norm_heads(x: Floats, weight: Floats, eps: float) -> None:
    """Each head in place; its squares lie in C order, like those of whole rows."""
    heads = x.reshape(len(x), -1, len(weight))
    normed = np.empty(heads.shape, np.float32)
    _norm(heads, weight, eps, normed)
    heads[...] = normed


def _rotate(x: Floats, angles: Table, head_dim: int) -> None:
    """A pair of neighbours is a complex number, and turning it is one product."""
    pairs = x.view(np.complex64)
    heads = pairs.reshape(len(x), -1, head_dim // 2)[..., : angles.shape[-1]]
    heads *= angles[:, None, :]


_STRAIGHT: Final = np.float32(2 * np.sqrt(2 / np.pi))
_CUBED: Final = np.float32(0.044715 * 2 * np.sqrt(2 / np.pi))


def _gate(both: Floats, activation: Activation, scratch: Floats, out: Floats) -> None:
    """out = activation(left half) * right half.

    Both are x / (1 + e^-y): (1 + tanh(y / 2)) / 2 is 1 / (1 + e^-y), so GELU's y is 2 sqrt(2 / pi) (x + 0.044715 x^3).
    """
    half = both.shape[-1] // 2
    gate, up = both[..., :half], both[..., half:]
    if activation == "gelu":
        np.multiply(gate, gate, out=scratch)
        scratch *= _CUBED
        scratch += _STRAIGHT
        scratch *= gate
        np.negative(scratch, out=scratch)
    else:
        np.negative(gate, out=scratch)
    np.exp(scratch, out=scratch)
    scratch += np.float32(1)
    np.divide(gate, scratch, out=scratch)
    np.multiply(scratch, up, out=out)


class TileKernels:
    """Rows in whole tiles: (n * TILE, width)."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        for tile in _tiles(x):
            _norm(x[tile], weight, eps, out[tile])

    def add_norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        for tile in _tiles(x):
            _add_norm(x[tile], weight, eps, out[tile])

    def norm_heads(self, x: Floats, weight: Floats, eps: float) -> None:
        for tile in _tiles(x):
            _norm_heads(x[tile], weight, eps)

    def add(self, x: Floats, vector: Floats) -> None:
        x += vector

    def rotate(self, x: Floats, table: Table, head_dim: int, positions: range) -> None:
        for tile in _tiles(x):
            places = positions[tile]
            _rotate(x[tile], table[places.start : places.stop], head_dim)

    def linear(self, x: Floats, matrix: Blocked, out: Floats) -> None:
        self._share(self._linear, x, matrix, out)

    def add_linear(self, x: Floats, matrix: Blocked, out: Floats) -> None:
        self._share(self._add_linear, x, matrix, out)

    def gated(self, x: Floats, matrix: Gated, out: Floats) -> None:
        self._share(self._gated, x, matrix, out)

    def _share(self, piece: Callable[..., None], x: Floats, matrix: Blocked, out: Floats) -> None:
        jobs: list[Job] = [
            partial(piece, x[tile], matrix, block, out[tile, slice(*block)])
            for block in matrix.blocks
            for tile in _tiles(x)
        ]
        self._workers.run(jobs)

    @staticmethod
    def _linear(x: Floats, matrix: Blocked, block: tuple[int, int], out: Floats, scratch: Scratch) -> None:
        np.matmul(x, matrix.numbers(*block, scratch).T, out=out)

    @staticmethod
    def _add_linear(x: Floats, matrix: Blocked, block: tuple[int, int], out: Floats, scratch: Scratch) -> None:
        product = scratch.array("product", *out.shape)
        np.matmul(x, matrix.numbers(*block, scratch).T, out=product)
        out += product

    @staticmethod
    def _gated(x: Floats, matrix: Gated, block: tuple[int, int], out: Floats, scratch: Scratch) -> None:
        start, end = block
        both = scratch.array("product", TILE, 2 * (end - start))
        np.matmul(x, matrix.numbers(start, end, scratch).T, out=both)
        _gate(both, matrix.activation, scratch.array("gate", *out.shape), out)


class RowKernels:
    """Rows that came alone: (n, width), each by itself.  A block of weights is read once for all of them."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        for row in _rows(x):
            _norm(x[row], weight, eps, out[row])

    def add_norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        for row in _rows(x):
            _add_norm(x[row], weight, eps, out[row])

    def norm_heads(self, x: Floats, weight: Floats, eps: float) -> None:
        for row in _rows(x):
            _norm_heads(x[row], weight, eps)

    def add(self, x: Floats, vector: Floats) -> None:
        x += vector

    def rotate(self, x: Floats, table: Table, head_dim: int, positions: Sequence[int]) -> None:
        for row, position in zip(_rows(x), positions, strict=True):
            _rotate(x[row], table[position : position + 1], head_dim)

    def linear(self, x: Floats, matrix: Blocked, out: Floats) -> None:
        self._share(self._linear, x, matrix, out)

    def add_linear(self, x: Floats, matrix: Blocked, out: Floats) -> None:
        self._share(self._add_linear, x, matrix, out)

    def gated(self, x: Floats, matrix: Gated, out: Floats) -> None:
        self._share(self._gated, x, matrix, out)

    def _share(self, piece: Callable[..., None], x: Floats, matrix: Blocked, out: Floats) -> None:
        jobs: list[Job] = [partial(piece, x, matrix, block, out[:, slice(*block)]) for block in matrix.blocks]
        self._workers.run(jobs)

    @staticmethod
    def _linear(x: Floats, matrix: Blocked, block: tuple[int, int], out: Floats, scratch: Scratch) -> None:
        rows = matrix.numbers(*block, scratch)
        for one, result in zip(x, out, strict=True):
            np.dot(rows, one, out=result)

    @staticmethod
    def _add_linear(x: Floats, matrix: Blocked, block: tuple[int, int], out: Floats, scratch: Scratch) -> None:
        rows = matrix.numbers(*block, scratch)
        product = scratch.array("row", len(rows))
        for one, result in zip(x, out, strict=True):
            np.dot(rows, one, out=product)
            result += product

    @staticmethod
    def _gated(x: Floats, matrix: Gated, block: tuple[int, int], out: Floats, scratch: Scratch) -> None:
        start, end = block
        rows = matrix.numbers(start, end, scratch)
        both = scratch.array("row", len(rows))
        gate = scratch.array("row gate", end - start)
        for one, result in zip(x, out, strict=True):
            np.dot(rows, one, out=both)
            _gate(both, matrix.activation, gate, result)


def _tiles(x: Floats) -> Iterator[slice]:
    """The rows of each tile.  Raises ValueError where the last isn't whole."""
    if len(x) % TILE:
        raise ValueError(f"{len(x)} rows aren't whole tiles of {TILE}")
    return (slice(at, at + TILE) for at in range(0, len(x), TILE))


def _rows(x: Floats) -> Iterator[slice]:
    return (slice(at, at + 1) for at in range(len(x)))
