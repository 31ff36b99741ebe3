"""Every kernel beside plain arithmetic in float64, on inputs that are hard; and each row by itself, bit for bit."""

from __future__ import annotations

from typing import Literal

import gguf
import numpy as np
import pytest
from hard import MAGNITUDES, agree, exact_product, opened, random_blocks, rounded, rows, tensor

from strata.errors import ModelError
from strata.gpu.ops import GpuOps
from strata.gpu.products import MANY_OF, RowwiseKernels
from strata.gpu.weights import FORMATS, float32
from strata.models.config import RawTensor

EPS = 1e-5
FORMS = ("rows", "tiles")
NUMBERS = ("f16", "bf16")
BLOCKY = [kind for kind in FORMATS if kind.startswith("Q")]


def kernels_of(card: GpuOps, form: str) -> RowwiseKernels:
    """Of a form, or in tensor cores of these numbers."""
    if form in FORMS:
        return getattr(card, form)
    return RowwiseKernels(card._device, MANY_OF[form])


def width_of(kind: str) -> int:
    return 512 if kind.endswith("_K") else 96


# -- formats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BLOCKY)
def test_the_rows_of_a_quantised_matrix_are_the_numbers_of_its_format(card: GpuOps, kind: str) -> None:
    weight = RawTensor("w", kind, (9, width_of(kind)), random_blocks(9, width_of(kind), kind))
    out = card.empty(9, width_of(kind))
    card.embed(card.matrix([weight]), np.array([8, 0, 3, 3, 7, 1, 2, 4, 5]), 1.0, out)
    wanted = float32(weight)[[8, 0, 3, 3, 7, 1, 2, 4, 5]]
    # A product and a sum may be rounded once instead of twice.
    np.testing.assert_allclose(card.numbers(out), wanted, rtol=2e-7, atol=2e-7 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_every_number_of_sixteen_bits_is_read_exactly(card: GpuOps, kind: str) -> None:
    """Denormals, infinities and what is no number among them."""
    bits = np.arange(65536, dtype=np.uint16)
    weight = RawTensor("w", kind, (64, 1024), bits.view(np.uint8))
    out = card.empty(64, 1024)
    card.embed(card.matrix([weight]), np.arange(64), 1.0, out)
    np.testing.assert_array_equal(card.numbers(out), float32(weight))


def test_a_token_that_there_is_not_is_refused(card: GpuOps) -> None:
    matrix = card.matrix([tensor(5, 32)])
    for token in (5, -1):
        with pytest.raises(IndexError, match="not below 5"):
            card.embed(matrix, np.array([0, token]), 1.0, card.empty(2, 32))


def test_a_format_or_a_width_that_no_kernel_has_is_refused_by_name(card: GpuOps) -> None:
    data = np.zeros(4 * 12, np.uint8)
    with pytest.raises(ModelError, match="w is of the kind Q2_K"):
        card.matrix([RawTensor("w", "Q2_K", (1, 256), np.zeros(84, np.uint8))])
    with pytest.raises(ModelError, match="w has 12 columns"):
        card.matrix([RawTensor("w", "F32", (1, 12), data)])


# -- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize(("count", "outputs", "columns"), [(1, 1, 8), (3, 70, 40), (65, 64, 96), (9, 130, 264)])
def test_a_product_is_exact_up_to_rounding(
    card: GpuOps, form: str, magnitude: str, count: int, outputs: int, columns: int
) -> None:
    x, weight = rows(count, columns, 1, magnitude), tensor(outputs, columns, seed=2)
    out = card.empty(count, outputs)
    getattr(card, form).linear(card.stored(x), card.matrix([weight]), out)
    agree(card.numbers(out), *exact_product(x, float32(weight)), additions=columns)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_product_with_each_format_is_exact_up_to_rounding(card: GpuOps, form: str, kind: str) -> None:
    """Two matrices one below the other, added to what is there."""
    columns = width_of(kind)
    x, above, below = rows(11, columns, 1), tensor(21, columns, kind, 2), tensor(50, columns, "F16", 3)
    before = rows(11, 71, 4)
    out = card.stored(before)
    getattr(card, form).add_linear(card.stored(x), card.matrix([above, below]), out)
    exact, size = exact_product(x, np.concatenate([float32(above), float32(below)]))
    agree(card.numbers(out), exact + before, size + np.abs(before), additions=columns + 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("gate", "up"), [("F32", "F32"), ("Q4_0", "Q4_0"), ("Q8_0", "F16")])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_gate_is_exact_up_to_rounding(
    card: GpuOps, form: str, gate: str, up: str, activation: Literal["silu", "gelu"]
) -> None:
    x = rows(65, 96, 1)
    sides = tensor(70, 96, gate, 2), tensor(70, 96, up, 3)
    out = card.empty(65, 70)
    getattr(card, form).gated(card.stored(x), card.gated_matrix(*sides, activation), out)
    left, right = (exact_product(x, float32(side))[0] for side in sides)
    np.testing.assert_allclose(card.numbers(out), gated(left, right, activation), rtol=1e-4, atol=1e-3)


def gated(left: np.ndarray, right: np.ndarray, activation: str) -> np.ndarray:
    return opened(left, activation)[0] * right


@pytest.mark.parametrize("form", FORMS)
def test_a_gate_that_overflows_is_closed(card: GpuOps, form: str) -> None:
    full = RawTensor("w", "F32", (16, 16), np.full((16, 16), -100, np.float32).reshape(-1).view(np.uint8))
    out = card.empty(3, 16)
    getattr(card, form).gated(card.stored(np.ones((3, 16), np.float32)), card.gated_matrix(full, full, "silu"), out)
    assert not card.numbers(out).any()


# -- products of 16 bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "magnitude"),
    [("f16", "plain"), ("f16", "small"), ("f16", "denormal"), *(("bf16", each) for each in MAGNITUDES)],
)
@pytest.mark.parametrize(("count", "outputs", "columns"), [(1, 1, 8), (3, 70, 40), (131, 33, 72)])
def test_a_product_in_tensor_cores_is_exact_up_to_the_rounding_of_what_is_multiplied(
    card: GpuOps, number: str, magnitude: str, count: int, outputs: int, columns: int
) -> None:
    x, weight = rows(count, columns, 1, magnitude), tensor(outputs, columns, seed=2)
    out = card.empty(count, outputs)
    kernels_of(card, number).linear(card.stored(x), card.matrix([weight]), out)
    exact = exact_product(rounded(x, number), rounded(float32(weight), number))
    agree(card.numbers(out), *exact, additions=columns)


@pytest.mark.parametrize(("number", "kind"), [("f16", "Q4_1"), ("bf16", "Q6_K")])
def test_a_product_with_a_format_in_tensor_cores_is_exact_up_to_rounding(card: GpuOps, number: str, kind: str) -> None:
    """Two matrices one below the other, added to what is there, in columns of wider rows."""
    columns = width_of(kind)
    x, above, below = rows(11, columns, 1), tensor(21, columns, kind, 2), tensor(50, columns, kind, 3)
    before = rows(11, 80, 4)
    out = card.stored(before)
    kernels_of(card, number).add_linear(card.stored(x), card.matrix([above, below]), out[:, 5:76])
    weights = rounded(np.concatenate([float32(above), float32(below)]), number)
    exact, size = exact_product(rounded(x, number), weights)
    got, there = card.numbers(out), before[:, 5:76]
    agree(got[:, 5:76], exact + there, size + np.abs(there), additions=columns + 1)
    assert np.delete(got, np.s_[5:76], 1).tolist() == np.delete(before, np.s_[5:76], 1).tolist()


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_gate_in_tensor_cores_is_exact_up_to_rounding(
    card: GpuOps, number: str, activation: Literal["silu", "gelu"]
) -> None:
    x, sides = rows(9, 40, 1), (tensor(70, 40, seed=2), tensor(70, 40, seed=3))
    out = card.empty(9, 70)
    kernels_of(card, number).gated(card.stored(x), card.gated_matrix(*sides, activation), out)
    exact = [exact_product(rounded(x, number), rounded(float32(side), number))[0] for side in sides]
    np.testing.assert_allclose(card.numbers(out), gated(*exact, activation), rtol=1e-4, atol=1e-3)


def test_what_sixteen_bits_cannot_hold_is_seen_and_stays_in_its_row(card: GpuOps) -> None:
    """Infinite in float16, and no number; the rows beside it don't meet it."""
    x = np.ones((3, 8), np.float32)
    x[1, 3], x[2, 2] = 65520, np.nan
    for number, wanted in (("f16", np.inf), ("bf16", 65536 + 7)):
        out = card.empty(3, 1)
        ones = RawTensor("w", "F32", (1, 8), np.ones(8, np.float32).view(np.uint8))
        kernels_of(card, number).linear(card.stored(x), card.matrix([ones]), out)
        np.testing.assert_array_equal(card.numbers(out)[:, 0], np.array([8, wanted, np.nan], np.float32))


# -- rows by themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize(("count", "columns"), [(1, 8), (3, 576), (5, 1000)])
def test_a_norm_is_exact_up_to_rounding(card: GpuOps, magnitude: str, count: int, columns: int) -> None:
    x, weight = rows(count, columns, 1, magnitude), tensor(1, columns, seed=2)
    vector = RawTensor("w", "F32", (columns,), weight.data)
    out = card.empty(count, columns)
    card.rows.norm(card.stored(x), card.vector(vector), EPS, out)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS) * float32(weight)
    np.testing.assert_allclose(card.numbers(out), exact, rtol=2e-5, atol=1e-44)


def test_what_is_normed_is_added_to_each_row(card: GpuOps) -> None:
    x, before, weight = rows(3, 200, 1), rows(3, 200, 2), tensor(1, 200, seed=3)
    vector, out = RawTensor("w", "F32", (200,), weight.data), card.stored(before)
    card.tiles.add_norm(card.stored(x), card.vector(vector), EPS, out)
    wide = x.astype(np.float64)
    exact = before + wide / np.sqrt((wide**2).mean(1, keepdims=True) + EPS) * float32(weight)
    np.testing.assert_allclose(card.numbers(out), exact, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("head_dim", [8, 64, 100])
def test_heads_are_normed_each_by_itself(card: GpuOps, head_dim: int) -> None:
    """Some columns of wider rows; the others stay."""
    x = rows(3, 5 * head_dim, 1)
    weight = RawTensor("w", "F32", (head_dim,), tensor(1, head_dim, seed=2).data)
    normed = card.stored(x)
    card.rows.norm_heads(normed[:, head_dim : 4 * head_dim], card.vector(weight), EPS)
    heads = x.astype(np.float64).reshape(3, 5, head_dim)
    exact = heads / np.sqrt((heads**2).mean(2, keepdims=True) + EPS) * float32(weight)
    exact[:, [0, 4]] = heads[:, [0, 4]]
    np.testing.assert_allclose(card.numbers(normed), exact.reshape(3, -1), rtol=2e-5)


def test_vectors_that_were_loaded_together_are_added_to_each_row(card: GpuOps) -> None:
    x, parts = rows(3, 200), [RawTensor("b", "F32", (size,), tensor(1, size).data) for size in (150, 40)]
    added = card.stored(x)
    card.tiles.add(added[:, :190], card.vectors(parts))
    exact = x + np.pad(np.concatenate([float32(part) for part in parts]), (0, 10))
    assert card.numbers(added).tolist() == exact.tolist()


# -- same rows, same bits -----------------------------------------------------------------------------------------

COUNTS = (1, 2, 7, 8, 9, 17, 64, 65, 70)


@pytest.mark.parametrize(
    ("form", "kind"),
    [*((form, kind) for form in FORMS for kind in ("F32", "Q4_1", "Q6_K")), ("f16", "F32"), ("bf16", "Q4_1")],
)
def test_a_row_of_a_product_has_the_same_bits_at_every_count_of_rows(card: GpuOps, form: str, kind: str) -> None:
    columns = width_of(kind)
    x, weight = card.stored(rows(70, columns)), tensor(66, columns, kind, 1)
    matrix, gated = card.matrix([weight]), card.gated_matrix(weight, tensor(66, columns, kind, 2), "silu")
    kernels, out = kernels_of(card, form), card.empty(70, 66)
    for run in (lambda a, b: kernels.linear(a, matrix, b), lambda a, b: kernels.gated(a, gated, b)):
        run(x, out)
        whole = card.numbers(out)
        for count in COUNTS:
            for start in (0, 70 - count):
                some = out[:count]
                run(x[start : start + count], some)
                assert card.numbers(some).tobytes() == whole[start : start + count].tobytes(), (count, start)


def test_the_formats_that_kernels_read_are_formats_of_the_file(card: GpuOps) -> None:
    for kind in FORMATS:
        assert kind in gguf.GGMLQuantizationType.__members__
