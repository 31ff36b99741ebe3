"""Weights made into float32, held against the `gguf` library's own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from quantised_cases import numbers_of, random_bytes

from strata.cpu.quantised import expand, float32_bytes
from strata.models.config import KINDS, RawTensor


def stored(kind: str, rows: int, columns: int) -> RawTensor:
    return RawTensor("blk.0.weight", kind, (rows, columns), random_bytes(kind, rows, columns, 1).reshape(-1))


def by_library(tensor: RawTensor) -> np.ndarray:
    rows, columns = tensor.shape
    return numbers_of(tensor.kind, tensor.data.reshape(rows, -1), columns)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_expands_to_the_numbers_that_the_library_makes(kind: str) -> None:
    tensor = stored(kind, 70, 4096 + 256)  # more than one piece, and a last one that isn't whole
    out = np.empty(tensor.shape, np.float32)
    expand(tensor, out)
    np.testing.assert_array_equal(out, by_library(tensor))


@pytest.mark.parametrize("kind", KINDS)
def test_some_rows_expand_to_the_same_numbers_as_all_of_them(kind: str) -> None:
    tensor = stored(kind, 9, 768)
    out = np.empty((4, 768), np.float32)
    expand(tensor, out, start=3)
    np.testing.assert_array_equal(out, by_library(tensor)[3:7])


def test_a_kind_that_is_not_known_is_refused_by_name() -> None:
    tensor = RawTensor("blk.0.weight", "IQ1_S", (1, 32), np.zeros(20, np.uint8))
    with pytest.raises(ValueError, match="IQ1_S"):
        expand(tensor, np.empty((1, 32), np.float32))


@pytest.mark.parametrize(("shape", "size"), [((2, 32), 20), ((1, 32), 21), ((1, 48), 30)])
def test_bytes_that_do_not_make_the_shape_are_refused(shape: tuple[int, int], size: int) -> None:
    tensor = RawTensor("blk.0.weight", "Q4_1", shape, np.zeros(size, np.uint8))
    with pytest.raises(ValueError, match="don't make"):
        expand(tensor, np.empty(shape, np.float32))


def test_a_vector_has_one_number_for_each_four_bytes_of_memory() -> None:
    assert float32_bytes(RawTensor("norm", "F16", (576,), np.zeros(1152, np.uint8))) == 2304
