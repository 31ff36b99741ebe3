"""What the tests of compiled kernels share: instruction sets, threads, and weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from quantised_cases import numbers_of, random_bytes

kernels = pytest.importorskip("strata.cpu._kernels", reason="no kernels were compiled here")

Part = tuple[str, int, int, np.ndarray]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Compute with an instruction set for a while."""
    before = kernels.used()
    kernels.use(name)
    try:
        yield
    finally:
        kernels.use(before)


@contextmanager
def pool(threads: int) -> Iterator[kernels.Pool]:
    opened = kernels.Pool(threads)
    try:
        yield opened
    finally:
        opened.close()


def weight(kind: str, outputs: int, inputs: int, seed: int = 1) -> tuple[Part, np.ndarray]:
    """A matrix as the kernels take it, and its numbers."""
    raw = random_bytes(kind, outputs, inputs, seed)
    return (kind, outputs, inputs, raw.reshape(-1)), numbers_of(kind, raw, inputs)
