"""Weights that stay as the file has them, for compiled kernels.  Knows bytes and blocks of outputs; no arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from strata.cpu import _kernels
from strata.cpu.matrix import Activation, Blocks, blocks_of
from strata.cpu.quantised import Stored
from strata.cpu.workers import Scratch

Floats = NDArray[np.float32]


@frozen
class StoredMatrix:
    """(outputs, inputs).  The weights are looked at where they lie, mapped from the file or not: nothing is copied."""

    weights: _kernels.Weights = field(eq=False)
    outputs: int
    inputs: int
    gated: bool
    blocks: Blocks
    activation: Activation

    def numbers(self, start: int, end: int, scratch: Scratch) -> Floats:
        """Made anew at every call, in a thread's own memory."""
        rows = np.arange(start, end)
        if self.gated:
            rows = np.concatenate((rows, self.outputs + rows))
        out = scratch.array("weights", len(rows), self.inputs)
        self.expand(rows, out)
        return out

    def expand(self, rows: NDArray[np.int64], out: Floats) -> None:
        _kernels.expand(self.weights, rows, out)


def load(parts: Sequence[Stored], *, gated: bool = False, activation: Activation = "silu") -> StoredMatrix:
    """Matrices of like width, one below the other; `gated`: the gate, and what it lets through."""
    shapes = tuple((part.kind, part.shape[0], part.shape[1], part.data) for part in parts)
    weights = _kernels.Weights(shapes, gated, activation == "gelu")
    outputs = parts[0].shape[0] if gated else sum(part.shape[0] for part in parts)
    return StoredMatrix(weights, outputs, parts[0].shape[1], gated, blocks_of(outputs, gated=gated), activation)
