"""Weights as numbers in memory, cut into blocks of outputs.  Knows shapes; no arithmetic.

A product with a matrix is done block by block, and a block's size follows from the matrix alone: so every product has
one shape, whoever computes it, and there are enough pieces for several threads.  Where kernels are compiled, weights
stay as the file has them (stored.py), and these are for NumPy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from strata.cpu.quantised import Stored, expand
from strata.cpu.workers import Scratch, aligned

BLOCK_OUTPUTS: Final = 512
"""Outputs of a block at most.  Of 192 to 1024: smaller ones cost speed, larger ones leave threads idle."""

_LANES: Final = 16
"""Blocks end at multiples of this where they can: kernels are slower on the rest."""

Floats = NDArray[np.float32]

Activation: TypeAlias = Literal["silu", "gelu"]
"""What opens a gate."""

Blocks: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of outputs."""


class Blocked(Protocol):
    """What a product block by block needs of a matrix."""

    @property
    def blocks(self) -> Blocks: ...

    def numbers(self, start: int, end: int, scratch: Scratch) -> Floats:
        """The rows for outputs start .. end - 1; of a gated matrix the gate's, then those that it lets through."""
        ...


class Gated(Blocked, Protocol):
    """One whose blocks have two sides."""

    @property
    def activation(self) -> Activation: ...


class Ungated(Blocked, Protocol):
    """One whose rows are its outputs', so that they can be looked up."""

    def expand(self, rows: NDArray[np.int64], out: Floats) -> None:
        """These rows.  Raises IndexError for one that isn't there."""
        ...


@frozen
class Matrix:
    """(outputs, inputs), C order."""

    weight: Floats = field(repr=lambda weight: f"<{weight.shape}>", eq=False)
    blocks: Blocks

    def numbers(self, start: int, end: int, _scratch: Scratch) -> Floats:
        return self.weight[start:end]

    def expand(self, rows: NDArray[np.int64], out: Floats) -> None:
        out[...] = self.weight[rows]


@frozen
class GatedMatrix:
    """Two matrices of one shape, block by block: outputs a .. b - 1 of the gate and then of the other lie in rows
    2a .. 2b - 1, so that one product makes both sides of the gate."""

    weight: Floats = field(repr=lambda weight: f"<{weight.shape}>", eq=False)
    blocks: Blocks
    activation: Activation

    def numbers(self, start: int, end: int, _scratch: Scratch) -> Floats:
        return self.weight[2 * start : 2 * end]


def load(parts: Sequence[Stored]) -> Matrix:
    """Matrices of like width, one below the other."""
    outputs = sum(part.shape[0] for part in parts)
    weight = aligned(outputs, parts[0].shape[1])
    at = 0
    for part in parts:
        expand(part, weight[at : at + part.shape[0]])
        at += part.shape[0]
    return Matrix(weight, blocks_of(outputs))


def load_gated(gate: Stored, up: Stored, activation: Activation = "silu") -> GatedMatrix:
    outputs, inputs = gate.shape
    weight = aligned(2 * outputs, inputs)
    blocks = blocks_of(outputs, gated=True)
    for start, end in blocks:
        middle = start + end
        expand(gate, weight[2 * start : middle], start)
        expand(up, weight[middle : 2 * end], start)
    return GatedMatrix(weight, blocks, activation)


def blocks_of(outputs: int, *, gated: bool = False) -> Blocks:
    """Cut into pieces of nearly one size, at most BLOCK_OUTPUTS rows of weights, and where it can be at least two."""
    most = BLOCK_OUTPUTS // 2 if gated else BLOCK_OUTPUTS
    count = max(-(-outputs // most), min(2, outputs // (8 * _LANES)), 1)
    size = -(-outputs // count)
    size = -(-size // _LANES) * _LANES
    return tuple((start, min(start + size, outputs)) for start in range(0, outputs, size))
