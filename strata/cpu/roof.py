"""What the processor does at most: a copy of memory, and a product of large matrices by BLAS, on as many threads.

Knows no model's operation: those are held against it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.cpu import machine
from strata.cpu.workers import Job, Scratch, Workers, aligned

COPIED: Final = 128 << 20
"""Bytes, and as many are written: more than caches hold."""
SIDE: Final = 1024
"""Of the matrices: BLAS has reached its pace, and a thread's three of them take 12 MiB."""

Floats = NDArray[np.float32]


class Roof:
    """Implements `strata.models.ops.Roof`."""

    def __init__(self, workers: Workers, copied: int = COPIED, side: int = SIDE) -> None:
        self._workers = workers
        self._side = side
        numbers = min(copied, machine.available_bytes() // 8) // (4 * workers.threads)
        # Written to: what is not lies in no memory yet.
        self._copies = [(_ones(numbers), _ones(numbers)) for _ in range(workers.threads)]
        self._products = [(_ones(side, side), _ones(side, side), _ones(side, side)) for _ in range(workers.threads)]

    def copy(self) -> int:
        jobs: list[Job] = [partial(_copy, *pair) for pair in self._copies]
        self._workers.run(jobs)
        return sum(2 * source.nbytes for source, _ in self._copies)

    def multiply(self, _together: bool) -> tuple[str, int]:
        jobs: list[Job] = [partial(_multiply, *matrices) for matrices in self._products]
        self._workers.run(jobs)
        return "float32, BLAS", 2 * self._side**3 * len(jobs)


def _ones(*shape: int) -> Floats:
    array = aligned(*shape)
    array[...] = 1
    return array


def _copy(source: Floats, to: Floats, _scratch: Scratch) -> None:
    np.copyto(to, source)


def _multiply(left: Floats, right: Floats, out: Floats, _scratch: Scratch) -> None:
    np.matmul(left, right, out=out)
