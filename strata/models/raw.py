"""What is done to a weight's numbers on their way from the file to a device, where a family's files need it.

For vectors alone: matrices stay as the file has them.  Knows the kinds in which norms are stored.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from strata.errors import ModelError
from strata.models.config import RawTensor


def shifted(tensor: RawTensor, plus: float) -> RawTensor:
    """The tensor with so much added to each number, in float32; itself for 0.  Raises ModelError where it can't be."""
    if plus == 0:
        return tensor
    numbers = _float32(tensor) + np.float32(plus)
    return evolve(tensor, kind="F32", data=numbers.view(np.uint8))


def _float32(tensor: RawTensor) -> NDArray[np.float32]:
    match tensor.kind:
        case "F32":
            return tensor.data.view(np.float32)
        case "F16":
            return tensor.data.view(np.float16).astype(np.float32)
        case "BF16":
            return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise ModelError(f"its {tensor.name} is of the kind {tensor.kind}, which no norm is; use another")
