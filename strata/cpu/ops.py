"""The processor's operations under one roof, and the threads and the memory that they use.  Knows no architecture.

On NumPy alone; compiled.py puts compiled kernels in the place of most of it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from strata.cpu import attention, machine, matrix
from strata.cpu.cache import PagedCache, Shape, page_nbytes
from strata.cpu.choice import NUMPY
from strata.cpu.kernels import TILE, RowKernels, Table, TileKernels, rotation_bytes, rotation_table
from strata.cpu.matrix import Activation, Gated, Ungated
from strata.cpu.quantised import Stored, expand, float32_bytes
from strata.cpu.roof import Roof
from strata.cpu.workers import Workers, aligned
from strata.draws import Draw

Floats = NDArray[np.float32]

_EVEN: Final = 2560
"""At about this position attending takes a tile as long as all else in a layer (SmolLM2)."""

_SLICE: Final = 2 * _EVEN
"""How far on, in that measure, one thread may get a tile in a slice: then two threads need 5 to 11 ms for it.  Two
tiles share what it costs to expand weights; more of them leave the second cache and gain nothing."""


class _SingleBlas:
    """BLAS with one thread for as long as anybody is inside; whoever leaves last puts it back as it was.

    The limit is the process's, so it can't be each object's own: the first to be closed would lift it for the others.
    """

    def __init__(self) -> None:
        # A finalizer may leave in the middle of an entering, in the same thread.
        self._lock = threading.RLock()
        self._inside = 0
        self._limits: threadpool_limits | None = None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limits = threadpool_limits(1, user_api="blas")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._limits is not None:
                self._limits.restore_original_limits()


_BLAS: Final = _SingleBlas()


class CpuOps:
    """Implements `strata.models.ops.Ops`.  `threads` None: as many as there are processors to use.

    BLAS computes with one thread in the whole process until the last such object is closed: their own threads share the
    work out.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._single = weakref.finalize(self, _BLAS.leave)
        _BLAS.enter()
        usable = machine.usable_processors()
        self._workers = Workers(usable if threads is None else min(threads, usable))
        self._kernels = NUMPY
        self.tile = TILE
        self.tiles = TileKernels(self._workers)
        self.rows = RowKernels(self._workers)

    @property
    def device(self) -> str:
        count = self._workers.threads
        return f"cpu ({self._kernels}, {count} thread{'s' * (count > 1)})"

    def slice_tiles(self, position: int) -> int:
        threads = self._workers.threads
        return max(1, min(threads * _SLICE // (_EVEN + position), max(2, threads // 2)))

    # -- memory ---------------------------------------------------------------------------------------------------

    def available_bytes(self) -> int:
        return machine.available_bytes()

    def matrix_bytes(self, tensor: Stored) -> int:
        return float32_bytes(tensor)

    def matrix(self, parts: Sequence[Stored]) -> Ungated:
        return matrix.load(parts)

    def gated_matrix(self, gate: Stored, up: Stored, activation: Activation) -> Gated:
        return matrix.load_gated(gate, up, activation)

    def vector(self, tensor: Stored) -> Floats:
        return self.vectors([tensor])

    def vectors(self, parts: Sequence[Stored]) -> Floats:
        out = aligned(sum(part.shape[0] for part in parts))
        at = 0
        for part in parts:
            expand(part, out[at : at + part.shape[0]].reshape(1, -1))
            at += part.shape[0]
        return out

    def rotation_bytes(self, context: int, turned: int) -> int:
        return rotation_bytes(context, turned)

    def rotation(
        self, context: int, turned: int, theta: float, factors: Sequence[float] = (), scale: float = 1.0
    ) -> Table:
        return rotation_table(context, turned, theta, factors, scale)

    def empty(self, rows: int, width: int) -> Floats:
        return aligned(rows, width)

    def bytes_of_page(self, shape: Shape) -> int:
        return page_nbytes(shape)

    def cache(self, shape: Shape) -> PagedCache:
        return PagedCache(shape)

    def context_bytes(self, context: int, heads: int, head_dim: int) -> int:
        del context, heads, head_dim
        return 0

    def expect_context(self, context: int, heads: int, cache: PagedCache) -> None:
        """What a row needs is the system's to give, while it attends."""

    def copy_out(self, cache: PagedCache, page: int, slot: int) -> None:
        cache.copy_out(page, slot)

    def copy_in(self, cache: PagedCache, slot: int, page: int) -> None:
        cache.copy_in(slot, page)

    def numbers(self, array: Floats) -> Floats:
        return array.copy()

    def draw(self, array: Floats, draws: Sequence[Draw | None], _positions: Sequence[int]) -> Sequence[int | None]:
        """Largest ones alone: the host draws others with NumPy, too."""
        return [self._largest(row) if draw and draw.keep == 1 else None for row, draw in zip(array, draws, strict=True)]

    @staticmethod
    def _largest(row: Floats) -> int | None:
        # No copy of them all, and no look at each: what is not a number is the least and the largest, too.
        column = int(row.argmax())
        return column if np.isfinite(row[column]) and np.isfinite(row.min()) else None

    def page_bytes(self, cache: PagedCache, pages: Sequence[int], length: int) -> Iterator[memoryview]:
        return cache.page_bytes(pages, length)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def embed(self, matrix: Ungated, tokens: NDArray[np.int64], scale: float, out: Floats) -> None:
        """Raises IndexError for a token that the matrix doesn't have."""
        matrix.expand(tokens, out)
        if scale != 1:
            out *= np.float32(scale)

    def attend_tiles(
        self,
        queries: Floats,
        keys: Floats,
        values: Floats,
        sight: attention.Sight,
        cache: PagedCache,
        pages: Sequence[int],
        first: int,
        real: range,
        out: Floats,
    ) -> None:
        places = range(first, first + len(queries))
        for turned in (queries, keys):
            self.tiles.rotate(turned, sight.angles, cache.head_dim, places)
        there = slice(real.start - first, real.stop - first)
        self._write(cache, sight.layer, pages, real.start, keys[there], values[there])
        attention.attend_tiles(self._workers, queries, attention.Stored(cache, sight, pages), first, real.stop, out)

    def attend_rows(
        self,
        queries: Floats,
        keys: Floats,
        values: Floats,
        sight: attention.Sight,
        cache: PagedCache,
        places: Sequence[tuple[Sequence[int], int]],
        out: Floats,
    ) -> None:
        for turned in (queries, keys):
            self.rows.rotate(turned, sight.angles, cache.head_dim, [position for _, position in places])
        for at, (pages, position) in enumerate(places):
            self._write(cache, sight.layer, pages, position, keys[at : at + 1], values[at : at + 1])
        stored = [(attention.Stored(cache, sight, pages), position) for pages, position in places]
        attention.attend_rows(self._workers, queries, stored, out)

    def recorder(self) -> Any:
        # NumPy's operations take their time by themselves.
        return None

    def recorder_bytes(self, _operations: int) -> int:
        return 0

    @staticmethod
    def _write(cache: PagedCache, layer: int, pages: Sequence[int], start: int, keys: Floats, values: Floats) -> None:
        heads = (len(keys), cache.kv_heads, cache.head_dim)
        cache.write(layer, pages, start, keys.reshape(heads), values.reshape(heads))

    def roof(self) -> Roof:
        return Roof(self._workers)

    def close(self) -> None:
        self._workers.close()
        self._single()
