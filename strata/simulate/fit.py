"""From times that were measured to a cost model.  Knows samples and least squares; no engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.errors import ConfigError
from strata.simulate.cost import CostModel

FEWEST: Final = 4
"""Samples of each kind."""


@frozen
class SliceSample:
    """A chunk's slices, on average."""

    rows: float
    """Of each slice; whole tiles of them."""
    position: float
    """The middle of the chunk (tokens)."""
    seconds: float


@frozen
class StepSample:
    rows: int
    positions: int
    """The sum of the contexts of all rows (tokens)."""
    seconds: float


@frozen
class Shape:
    """How the model's chunks are cut."""

    layers: int
    slice_tokens: int
    tile_tokens: int


def fit(measured_on: str, shape: Shape, slices: Sequence[SliceSample], steps: Sequence[StepSample]) -> CostModel:
    """The model with the least squares of relative errors; no part of it is below 0.  Raises ConfigError."""
    if min(len(slices), len(steps)) < FEWEST:
        raise ConfigError("calibrate", f"{len(slices)} chunks and {len(steps)} steps are too few to fit")
    of_slice = _least_squares(
        [(1.0, sample.rows, sample.rows * sample.position) for sample in slices],
        [sample.seconds for sample in slices],
    )
    # Each number of rows for itself: a lone one has a kernel of its own.
    counts = sorted({sample.rows for sample in steps})
    of_step = _least_squares(
        [(*(float(sample.rows == rows) for rows in counts), float(sample.positions)) for sample in steps],
        [sample.seconds for sample in steps],
    )
    return CostModel(
        measured_on=measured_on,
        layers=shape.layers,
        slice_tokens=shape.slice_tokens,
        tile_tokens=shape.tile_tokens,
        slice_s=of_slice[0],
        slice_row_s=of_slice[1],
        slice_row_position_s=of_slice[2],
        step_s=dict(zip(counts, of_step[:-1], strict=True)),
        step_row_position_s=of_step[-1],
    )


def _least_squares(known: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Coefficients of at least 0: who would be below it is taken out, one at a time, the lowest first."""
    wanted: NDArray[np.float64] = np.asarray(seconds, dtype=np.float64)
    # Divided by what is wanted, so that a long chunk counts no more than a short one.
    matrix: NDArray[np.float64] = np.asarray(known, dtype=np.float64) / wanted[:, None]
    kept = list(range(matrix.shape[1]))
    while True:
        scale = np.abs(matrix[:, kept]).max(axis=0)
        scale[scale == 0] = 1.0
        found = np.linalg.lstsq(matrix[:, kept] / scale, np.ones(len(wanted)), rcond=None)[0] / scale
        lowest = int(found.argmin())
        if found[lowest] >= 0 or len(kept) == 1:
            break
        del kept[lowest]
    whole = [0.0] * matrix.shape[1]
    for at, value in zip(kept, found, strict=True):
        whole[at] = max(0.0, float(value))
    return whole
