"""Two conventions for the rotated pairs of a head, and the way from one to the other.

The device turns neighbours (2i, 2i + 1).  Files of most families keep the pair (i, i + n/2) of a head's n rotated
elements, because checkpoints do.  Queries and keys are only ever multiplied with each other, so their rows may be
reordered once, when they are loaded, and nothing else need know.  Knows no device and no arithmetic.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve
from numpy.typing import NDArray

from strata.models.config import ModelConfig, RawTensor


def as_pairs(tensor: RawTensor, config: ModelConfig) -> RawTensor:
    """A copy of a weight, bias or norm of queries or keys in whose heads each rotated pair are neighbours.

    Its first axis is of whole heads.  A quantised row stays as it is: blocks lie along rows.
    """
    order = _order(config.head_dim, config.rope_dim)
    rows = tensor.shape[0]
    heads = tensor.data.reshape(rows // config.head_dim, config.head_dim, -1)
    return evolve(tensor, data=np.ascontiguousarray(heads[:, order]).reshape(-1))


def _order(head_dim: int, rope_dim: int) -> NDArray[np.intp]:
    """Where each element of a head comes from; those that aren't rotated stay."""
    order = np.arange(head_dim)
    order[:rope_dim] = np.arange(rope_dim).reshape(2, -1).T.reshape(-1)
    return order
