"""A model's reading without an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from drive import prompt
from parity import Held

from strata.gpu.ops import GpuOps
from strata.models import open_model
from strata.models.make import make_model


def logits_of(path: Path, ops: GpuOps) -> np.ndarray:
    """After the tiny model's reading of forty tokens."""
    model = make_model(open_model(path), ops)
    model.allocate(1, 64, context=64, rows=1)
    slices = model.read(Held([0]), 0, np.array(prompt(1, 40)), model.workspace(64))
    while True:
        try:
            next(slices)
        except StopIteration as end:
            model.close()
            return end.value
