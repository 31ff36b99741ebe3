"""A decode step's operations, taken down once for the compiled kernels, and done in one call each time.

A room of its own because nothing is computed while it is made.  A step is some two hundred operations of ten to a
hundred microseconds, of which Python's part was one in twenty.  Knows no architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.cpu import _kernels
from strata.cpu.attention import Sight
from strata.cpu.cache import PagedCache

Floats = NDArray[np.float32]


class Program:
    """Implements `strata.models.ops.Recorder`; what each operation does is said in compiled.py.

    Holds the arrays that it was given.  Matrices are StoredMatrix.
    """

    def __init__(self, pool: _kernels.Pool) -> None:
        self._pool = pool
        self._program = _kernels.Program()

    def norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        self._program.norm(x, weight, eps, out)

    def add_norm(self, x: Floats, weight: Floats, eps: float, out: Floats) -> None:
        self._program.norm(x, weight, eps, x)
        self._program.add_rows(out, x)

    def norm_heads(self, x: Floats, weight: Floats, eps: float) -> None:
        self._program.norm(x, weight, eps, x)

    def add(self, x: Floats, vector: Floats) -> None:
        self._program.add(x, vector)

    def linear(self, x: Floats, matrix: Any, out: Floats) -> None:
        self._program.product(matrix.weights, x, out, False)

    def add_linear(self, x: Floats, matrix: Any, out: Floats) -> None:
        self._program.product(matrix.weights, x, out, True)

    def gated(self, x: Floats, matrix: Any, out: Floats) -> None:
        self._program.product(matrix.weights, x, out, False)

    def attend(
        self, queries: Floats, keys: Floats, values: Floats, sight: Sight, cache: PagedCache, out: Floats
    ) -> None:
        look = (sight.layer, sight.window, sight.scale)
        self._program.attend(queries, keys, values, sight.angles, cache.memory, *look, out)

    @staticmethod
    def bytes_of(operations: int) -> int:
        """Memory that one with so many takes."""
        return _kernels.Program.bytes_of(operations)

    def __sizeof__(self) -> int:
        """Of what was taken down, without the arrays."""
        return self._program.__sizeof__()

    def run(self, places: Sequence[tuple[Sequence[int], int]]) -> None:
        self._program.run(self._pool, list(places))
