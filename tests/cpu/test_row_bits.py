"""A row's bits depend on nothing but the row: not on how many come with it, on who they are, or on the threads.

The neighbours here are NaN, so a result that took anything from them would show it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest

from strata.cpu import matrix
from strata.cpu.kernels import TILE, RowKernels, TileKernels, rotation_table
from strata.cpu.workers import Workers
from strata.models.config import RawTensor

EPS = 1e-5


@pytest.fixture(scope="module")
def workers() -> Workers:
    return Workers(1)


def random_rows(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)


def stored(outputs: int, inputs: int, seed: int) -> RawTensor:
    weight = random_rows(outputs, inputs, seed) / np.float32(np.sqrt(inputs))
    return RawTensor("weight", "F32", weight.shape, weight.reshape(-1).view(np.uint8))


Operation = Callable[[TileKernels | RowKernels, np.ndarray], np.ndarray]


def linear(inputs: int, outputs: int) -> Operation:
    weight = matrix.load([stored(outputs // 2, inputs, 1), stored(outputs - outputs // 2, inputs, 2)])

    def run(kernels: TileKernels | RowKernels, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), outputs), np.nan, np.float32)
        kernels.linear(x, weight, out)
        return out

    return run


def add_linear(inputs: int, outputs: int) -> Operation:
    weight = matrix.load([stored(outputs, inputs, 1)])

    def run(kernels: TileKernels | RowKernels, x: np.ndarray) -> np.ndarray:
        out = np.ones((len(x), outputs), np.float32)
        kernels.add_linear(x, weight, out)
        return out

    return run


def gated(inputs: int, outputs: int) -> Operation:
    weight = matrix.load_gated(stored(outputs, inputs, 1), stored(outputs, inputs, 2))

    def run(kernels: TileKernels | RowKernels, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), outputs), np.nan, np.float32)
        kernels.gated(x, weight, out)
        return out

    return run


def gated_by_gelu(inputs: int, outputs: int) -> Operation:
    weight = matrix.load_gated(stored(outputs, inputs, 1), stored(outputs, inputs, 2), "gelu")

    def run(kernels: TileKernels | RowKernels, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), outputs), np.nan, np.float32)
        kernels.gated(x, weight, out)
        return out

    return run


def add_norm(inputs: int, _outputs: int) -> Operation:
    weight = random_rows(1, inputs, 3)[0]

    def run(kernels: TileKernels | RowKernels, x: np.ndarray) -> np.ndarray:
        out = np.ones_like(x)
        kernels.add_norm(x.copy(), weight, EPS, out)
        return out

    return run


def norm(inputs: int, _outputs: int) -> Operation:
    weight = random_rows(1, inputs, 3)[0]

    def run(kernels: TileKernels | RowKernels, x: np.ndarray) -> np.ndarray:
        out = np.full_like(x, np.nan)
        kernels.norm(x, weight, EPS, out)
        return out

    return run


CASES = [
    *((linear, size) for size in ((576, 960), (576, 192), (48, 40))),
    *((add_linear, size) for size in ((1536, 576), (576, 576), (48, 40))),
    *((gated, size) for size in ((576, 480), (48, 40))),
    *((norm, size) for size in ((576, 0), (48, 0))),
    (add_norm, (48, 0)),
    (gated_by_gelu, (48, 40)),
]
"""Inputs and outputs: those of SmolLM2, and small ones for which BLAS has other kernels."""


@pytest.mark.parametrize(("make", "size"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_row_in_a_tile_has_the_same_bits_beside_any_neighbours(
    workers: Workers, make: Callable[[int, int], Operation], size: tuple[int, int]
) -> None:
    """1 to 70 rows from the start of a tile, and every offset in it."""
    run, kernels = make(*size), TileKernels(workers)
    x = random_rows(3 * TILE, size[0])
    whole = run(kernels, x)
    starts_and_counts = [(0, count) for count in range(1, 71)]
    starts_and_counts += [(start, 1) for start in range(1, TILE)] + [(start, 70) for start in (1, 31, 60)]
    for start, count in starts_and_counts:
        some = np.full((-(-(start + count) // TILE) * TILE, size[0]), np.nan, np.float32)
        some[start : start + count] = x[start : start + count]
        alone = run(kernels, some)[start : start + count]
        assert alone.tobytes() == whole[start : start + count].tobytes(), (start, count)


@pytest.mark.parametrize(("make", "size"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_row_that_comes_alone_has_the_same_bits_as_among_others(
    workers: Workers, make: Callable[[int, int], Operation], size: tuple[int, int]
) -> None:
    run, kernels = make(*size), RowKernels(workers)
    x = random_rows(70, size[0])
    alone = np.concatenate([run(kernels, x[at : at + 1].copy()) for at in range(70)])
    for count in (2, 3, 8, 33, 70):
        for start in (0, 70 - count):
            assert run(kernels, x[start : start + count]).tobytes() == alone[start : start + count].tobytes()


@pytest.mark.parametrize(("make", "size"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_one_thread_and_three_give_the_same_bits(make: Callable[[int, int], Operation], size: tuple[int, int]) -> None:
    run = make(*size)
    x = random_rows(2 * TILE, size[0])
    several = Workers(3)
    try:
        for kind in (TileKernels, RowKernels):
            assert run(kind(Workers(1)), x).tobytes() == run(kind(several), x).tobytes()
    finally:
        several.close()


@pytest.mark.parametrize(("make", "size"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_both_forms_agree_to_rounding(
    workers: Workers, make: Callable[[int, int], Operation], size: tuple[int, int]
) -> None:
    run = make(*size)
    x = random_rows(TILE, size[0])
    np.testing.assert_allclose(run(TileKernels(workers), x), run(RowKernels(workers), x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "head_dim", "turned"), [(9, 64, 64), (3, 64, 64), (1, 6, 4), (2, 16, 8)])
def test_a_rotated_row_has_the_same_bits_alone_and_among_others(
    workers: Workers, heads: int, head_dim: int, turned: int
) -> None:
    table = rotation_table(200, turned, 10000.0)
    wide = random_rows(2 * TILE, heads * head_dim + 10)
    whole = wide.copy()[:, :-10]
    TileKernels(workers).rotate(whole, table, head_dim, range(TILE, 3 * TILE))
    for start in range(2 * TILE):
        one = wide.copy()[start : start + 1, :-10]
        RowKernels(workers).rotate(one, table, head_dim, [TILE + start])
        assert one.tobytes() == whole[start : start + 1].tobytes()


def test_rotation_turns_each_pair_by_its_position_and_leaves_the_rest(workers: Workers) -> None:
    table = rotation_table(100, 4, 10000.0)
    x = random_rows(1, 12)
    turned = x.copy()
    RowKernels(workers).rotate(turned, table, 6, [70])
    for head in (0, 1):
        row, was = turned[0, head * 6 :], x[0, head * 6 :]
        for pair, angle in ((0, 70.0), (1, 70.0 / 100.0)):
            left, right = was[2 * pair], was[2 * pair + 1]
            assert row[2 * pair] == pytest.approx(left * np.cos(angle) - right * np.sin(angle), abs=1e-6)
            assert row[2 * pair + 1] == pytest.approx(left * np.sin(angle) + right * np.cos(angle), abs=1e-6)
        assert (row[4], row[5]) == (was[4], was[5])


def test_gelu_opens_a_gate_by_its_approximation_with_a_tangent(workers: Workers) -> None:
    x = np.linspace(-6, 6, TILE, dtype=np.float32).reshape(-1, 1)
    one = RawTensor("w", "F32", (1, 1), np.ones(1, np.float32).view(np.uint8))
    exact = x * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    for kernels in (TileKernels(workers), RowKernels(workers)):
        out = np.empty_like(x)
        kernels.gated(x, matrix.load_gated(one, one, "gelu"), out)
        np.testing.assert_allclose(out, exact, atol=2e-6)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_gate_that_overflows_is_closed(workers: Workers, activation: Literal["silu", "gelu"]) -> None:
    """silu(-x) is -x / (1 + e^x): for a large x the denominator is infinite."""
    gate, up = np.full((16, 16), -100, np.float32), np.ones((16, 16), np.float32)
    tensors = [RawTensor("w", "F32", (16, 16), weight.reshape(-1).view(np.uint8)) for weight in (gate, up)]
    weight = matrix.load_gated(*tensors, activation)
    for kernels, rows in ((TileKernels(workers), TILE), (RowKernels(workers), 3)):
        out = np.full((rows, 16), np.nan, np.float32)
        kernels.gated(np.ones((rows, 16), np.float32), weight, out)
        assert not out.any()


def test_rows_that_are_not_whole_tiles_are_refused(workers: Workers) -> None:
    with pytest.raises(ValueError, match="whole tiles"):
        TileKernels(workers).norm(random_rows(65, 8), np.ones(8, np.float32), EPS, np.empty((65, 8), np.float32))


@pytest.mark.parametrize("outputs", [1, 40, 192, 576, 960, 1536, 49152, 50001])
def test_the_blocks_of_a_matrix_cover_its_outputs_in_order(outputs: int) -> None:
    blocks = matrix.load([RawTensor("w", "F32", (outputs, 1), np.zeros(outputs * 4, np.uint8))]).blocks
    assert [at for block in blocks for at in range(*block)] == list(range(outputs))
    assert max(end - start for start, end in blocks) <= matrix.BLOCK_OUTPUTS
