"""Rows that are read together, by the compiled kernels.

The plain twin of each operation is in kernels.py; native/tiles.c says why a row's bits are its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.cpu import _kernels
from strata.cpu.kernels import TileKernels
from strata.cpu.workers import Workers

Floats = NDArray[np.float32]


class CompiledTiles(TileKernels):
    """Rows in whole tiles: (n * TILE, width); a weight is expanded once for all tiles of a call.

    Matrices are StoredMatrix.
    """

    def __init__(self, workers: Workers, pool: _kernels.Pool) -> None:
        super().__init__(workers)
        self._pool = pool

    def norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        _kernels.norm_tiles(self._pool, x, weight, eps, out)

    def add_norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        _kernels.norm_tiles(self._pool, x, weight, eps, x)
        out += x

    def norm_heads(self, x: Floats, weight: Floats, eps: float) -> None:
        _kernels.norm_tiles(self._pool, x, weight, eps, x)

    def linear(self, x: Floats, matrix: Any, out: Floats) -> None:
        _kernels.product_tiles(self._pool, matrix.weights, x, out, False)

    def add_linear(self, x: Floats, matrix: Any, out: Floats) -> None:
        _kernels.product_tiles(self._pool, matrix.weights, x, out, True)

    def gated(self, x: Floats, matrix: Any, out: Floats) -> None:
        _kernels.product_tiles(self._pool, matrix.weights, x, out, False)
