"""The processor's operations by compiled kernels; weights stay as the file has them.

The plain twin of each is in ops.py, kernels.py and attention.py.  Knows no architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.cpu import _kernels, stored
from strata.cpu.attention import Sight
from strata.cpu.cache import PagedCache
from strata.cpu.compiled_tiles import CompiledTiles
from strata.cpu.kernels import RowKernels
from strata.cpu.matrix import Activation
from strata.cpu.ops import CpuOps
from strata.cpu.program import Program
from strata.cpu.quantised import Stored
from strata.cpu.stored import StoredMatrix
from strata.cpu.workers import Workers
from strata.draws import Draw

Floats = NDArray[np.float32]


class CompiledRows(RowKernels):
    """Rows that came alone: (n, width), each by itself; the weights are read once for all of them.

    Matrices are StoredMatrix.
    """

    def __init__(self, workers: Workers, pool: _kernels.Pool) -> None:
        super().__init__(workers)
        self._pool = pool

    def norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        _kernels.norm(x, weight, eps, out)

    def add_norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        _kernels.norm(x, weight, eps, x)
        out += x

    def norm_heads(self, x: Floats, weight: Floats, eps: float) -> None:
        _kernels.norm(x, weight, eps, x)

    def linear(self, x: Floats, matrix: Any, out: Floats) -> None:
        _kernels.product(self._pool, matrix.weights, x, out, False)

    def add_linear(self, x: Floats, matrix: Any, out: Floats) -> None:
        _kernels.product(self._pool, matrix.weights, x, out, True)

    def gated(self, x: Floats, matrix: Any, out: Floats) -> None:
        _kernels.product(self._pool, matrix.weights, x, out, False)


class CompiledOps(CpuOps):
    """Implements `strata.models.ops.Ops` with the kernels for one instruction set, in the whole process the same."""

    def __init__(self, threads: int | None, kernels: str) -> None:
        _kernels.use(kernels)
        super().__init__(threads)
        self._kernels = kernels
        self._pool = _kernels.Pool(self._workers.threads)
        self.tiles = CompiledTiles(self._workers, self._pool)
        self.rows = CompiledRows(self._workers, self._pool)

    def matrix_bytes(self, tensor: Stored) -> int:
        """What is mapped from the file counts too: it must stay in memory for every step."""
        return tensor.data.nbytes

    def matrix(self, parts: Sequence[Stored]) -> StoredMatrix:
        return stored.load(parts)

    def gated_matrix(self, gate: Stored, up: Stored, activation: Activation) -> StoredMatrix:
        return stored.load([gate, up], gated=True, activation=activation)

    def draw(self, array: Floats, draws: Sequence[Draw | None], positions: Sequence[int]) -> Sequence[int | None]:
        return _kernels.draw(self._pool, array, [*map(_told, draws, positions)])

    def attend_tiles(
        self,
        queries: Floats,
        keys: Floats,
        values: Floats,
        sight: Sight,
        cache: PagedCache,
        pages: Sequence[int],
        first: int,
        real: range,
        out: Floats,
    ) -> None:
        rows, where = (queries, keys, values, sight.angles), (pages, first, real.start, real.stop)
        _kernels.attend_tiles(self._pool, *rows, cache.memory, sight.layer, sight.window, sight.scale, *where, out)

    def attend_rows(
        self,
        queries: Floats,
        keys: Floats,
        values: Floats,
        sight: Sight,
        cache: PagedCache,
        places: Sequence[tuple[Sequence[int], int]],
        out: Floats,
    ) -> None:
        rows, look = (queries, keys, values, sight.angles), (sight.layer, sight.window, sight.scale)
        _kernels.attend(self._pool, *rows, cache.memory, *look, list(places), out)

    def recorder(self) -> Program:
        return Program(self._pool)

    def recorder_bytes(self, operations: int) -> int:
        return Program.bytes_of(operations)

    def close(self) -> None:
        self._pool.close()
        super().close()


def _told(draw: Draw | None, position: int) -> tuple[float, int, int, int, int, int] | None:
    return None if draw is None else (draw.scale, draw.keep, draw.nucleus, draw.least, draw.seed, position)
