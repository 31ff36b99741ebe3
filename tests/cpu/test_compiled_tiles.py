"""Rows read together by the compiled kernels: what they compute, and that a row's bits are its own.

Neighbours are NaN wherever they may be, so a result that took anything from them would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from compiled_cases import kernels, pool, using, weight
from quantised_cases import KINDS, random_rows

from strata.cpu import matrix
from strata.cpu.attention import Stored, attend_tiles
from strata.cpu.cache import PagedCache
from strata.cpu.compiled import CompiledRows
from strata.cpu.compiled_tiles import CompiledTiles
from strata.cpu.kernels import TILE, RowKernels, TileKernels, rotation_table
from strata.cpu.workers import Workers
from strata.models.config import RawTensor
from strata.models.ops import CacheShape, Sight

EPS = 1e-5
COUNTS = [*range(1, 18), *range(63, 71)]


@pytest.fixture(params=kernels.sets())
def _each_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every instruction set that can run here."""
    with using(request.param):
        yield


# -- products and norms -----------------------------------------------------------------------------------------------

Operation = Callable[[kernels.Pool, np.ndarray], np.ndarray]


def linear(kind: str, inputs: int, outputs: int, *, add: bool = False) -> Operation:
    """Two parts, as queries and keys are."""
    parts = [weight(kind, count, inputs, seed)[0] for seed, count in enumerate((outputs // 3, outputs - outputs // 3))]
    weights = kernels.Weights(tuple(parts), False)

    def run(threads: kernels.Pool, x: np.ndarray) -> np.ndarray:
        wide = np.full((len(x), outputs + 3), 1 if add else np.nan, np.float32)
        kernels.product_tiles(threads, weights, x, wide[:, :outputs], add)
        return wide[:, :outputs].copy()

    return run


def gated(kind: str, inputs: int, outputs: int) -> Operation:
    weights = kernels.Weights((weight(kind, outputs, inputs, 1)[0], weight(kind, outputs, inputs, 2)[0]), True)

    def run(threads: kernels.Pool, x: np.ndarray) -> np.ndarray:
        out = np.full((len(x), outputs), np.nan, np.float32)
        kernels.product_tiles(threads, weights, x, out, False)
        return out

    return run


def norm(inputs: int) -> Operation:
    def run(threads: kernels.Pool, x: np.ndarray) -> np.ndarray:
        out = np.full_like(x, np.nan)
        kernels.norm_tiles(threads, x, random_rows(1, inputs, 3)[0], EPS, out)
        return out

    return run


OPERATIONS = {
    "Q4_1": (576, linear("Q4_1", 576, 300)),
    "Q8_0 added": (1536, linear("Q8_0", 1536, 40, add=True)),
    "F16 of an odd width": (44, linear("F16", 44, 23)),
    "Q6_K": (512, linear("Q6_K", 512, 50)),
    "gated": (576, gated("Q4_1", 576, 77)),
    "norm": (45, norm(45)),
}


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_numbers_that_the_library_reads(kind: str) -> None:
    parts, numbers = zip(*(weight(kind, outputs, 512, outputs) for outputs in (50, 7)), strict=True)
    x, out = random_rows(2 * TILE, 512), np.full((2 * TILE, 57), np.nan, np.float32)
    with pool(1) as one:
        kernels.product_tiles(one, kernels.Weights(parts, False), x, out, False)
    expected = x.astype(np.float64) @ np.concatenate(numbers).T
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("kind", KINDS)
def test_one_input_alone_gives_the_weight_to_the_bit(kind: str) -> None:
    part, numbers = weight(kind, 50, 768)
    with pool(1) as one:
        for first in range(0, 768, TILE):
            out = np.full((TILE, 50), np.nan, np.float32)
            kernels.product_tiles(
                one, kernels.Weights((part,), False), np.eye(TILE, 768, first, np.float32), out, False
            )
            np.testing.assert_array_equal(out, numbers[:, first : first + TILE].T)


@pytest.mark.usefixtures("_each_set")
def test_a_gate_is_the_silu_of_one_product_times_another() -> None:
    (gate, gate_numbers), (up, up_numbers) = weight("Q4_1", 77, 576, 1), weight("Q8_0", 77, 576, 2)
    x, out = random_rows(TILE, 576) * np.float32(4), np.full((TILE, 77), np.nan, np.float32)
    with pool(1) as one:
        kernels.product_tiles(one, kernels.Weights((gate, up), True), x, out, False)
    closed = x.astype(np.float64) @ gate_numbers.T
    np.testing.assert_allclose(out, closed / (1 + np.exp(-closed)) * (x @ up_numbers.T), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_each_set")
def test_a_gate_may_be_the_gelu_of_one_product() -> None:
    """As of the plain kernels, of rows that are read together and of those that come alone."""
    parts = [weight("Q4_1", 77, 576, seed)[0] for seed in (1, 2)]
    plain = matrix.load_gated(*(RawTensor("w", kind, (rows, width), data) for kind, rows, width, data in parts), "gelu")
    x, expected = random_rows(TILE, 576) * np.float32(4), np.empty((TILE, 77), np.float32)
    TileKernels(Workers(1)).gated(x, plain, expected)
    with pool(1) as one:
        for product, rows in ((kernels.product_tiles, TILE), (kernels.product, 5)):
            out = np.full((rows, 77), np.nan, np.float32)
            product(one, kernels.Weights(tuple(parts), True, True), x[:rows], out, False)
            np.testing.assert_allclose(out, expected[:rows], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_each_set")
def test_what_is_normed_is_added_to_the_rows_as_the_plain_kernels_do() -> None:
    """In place first, by the same kernels as other norms."""
    scale = random_rows(1, 45)[0]
    with pool(2) as two:
        for kind, plain in ((CompiledTiles, TileKernels), (CompiledRows, RowKernels)):
            x, out, expected = random_rows(TILE, 45), random_rows(TILE, 45, 2), random_rows(TILE, 45, 2)
            plain(Workers(1)).add_norm(x, scale, EPS, expected)
            kind(Workers(1), two).add_norm(x, scale, EPS, out)
            np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_each_set")
def test_a_gate_that_overflows_is_closed() -> None:
    parts = [("F32", 16, 16, np.full(256, value, np.float32).view(np.uint8)) for value in (-100, 1)]
    out = np.full((TILE, 16), np.nan, np.float32)
    with pool(1) as one:
        kernels.product_tiles(one, kernels.Weights(tuple(parts), True), np.ones((TILE, 16), np.float32), out, False)
    assert not out.any()


@pytest.mark.usefixtures("_each_set")
def test_a_norm_is_that_of_the_plain_kernels() -> None:
    x, scale = random_rows(TILE, 45), random_rows(1, 45)[0]
    out, plain = np.empty_like(x), np.empty_like(x)
    with pool(1) as one:
        kernels.norm_tiles(one, x, scale, EPS, out)
    TileKernels(Workers(1)).norm(x, scale, EPS, plain)
    np.testing.assert_allclose(out, plain, rtol=1e-6)


@pytest.mark.usefixtures("_each_set")
def test_heads_are_normed_in_place_as_rows_of_their_own() -> None:
    wide, scale = random_rows(TILE, 3 * 20 + 4), random_rows(1, 20)[0]
    heads, apart = wide[:, :60], np.empty((3 * TILE, 20), np.float32)
    with pool(2) as two:
        kernels.norm_tiles(two, heads.reshape(-1, 20).copy(), scale, EPS, apart)
        kernels.norm_tiles(two, heads, scale, EPS, heads)
    assert heads.tobytes() == apart.reshape(TILE, 60).tobytes()


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize(("inputs", "run"), OPERATIONS.values(), ids=OPERATIONS)
def test_a_row_has_the_same_bits_beside_any_neighbours(inputs: int, run: Operation) -> None:
    """1 to 17 and 63 to 70 rows from the start of a tile, and every offset in it."""
    x = random_rows(3 * TILE, inputs)
    places = [(0, count) for count in COUNTS] + [(start, 1) for start in range(1, TILE)]
    with pool(1) as one:
        whole = run(one, x)
        for start, count in [*places, (1, 70), (31, 70), (60, 70)]:
            some = np.full((-(-(start + count) // TILE) * TILE, inputs), np.nan, np.float32)
            some[start : start + count] = x[start : start + count]
            assert run(one, some)[start : start + count].tobytes() == whole[start : start + count].tobytes(), start


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize(("inputs", "run"), OPERATIONS.values(), ids=OPERATIONS)
def test_any_number_of_threads_gives_the_same_bits(inputs: int, run: Operation, threads: int) -> None:
    x = random_rows(2 * TILE, inputs)
    with pool(1) as one, pool(threads) as several:
        assert run(one, x).tobytes() == run(several, x).tobytes()


def test_sizes_that_do_not_fit_are_refused() -> None:
    weights = kernels.Weights((weight("F32", 8, 16)[0],), False)
    out = np.empty((65, 8), np.float32)
    with pool(1) as one:
        with pytest.raises(ValueError, match="whole tiles"):
            kernels.product_tiles(one, weights, np.empty((65, 16), np.float32), out, False)
        with pytest.raises(ValueError, match="fit"):
            kernels.product_tiles(one, weights, np.empty((64, 16), np.float32), out, False)
        with pytest.raises(ValueError, match="whole tiles"):
            kernels.norm_tiles(one, out, out[0].copy(), EPS, out)


# -- attention --------------------------------------------------------------------------------------------------------

TOKENS = 600
ROWS = -(-TOKENS // TILE) * TILE


class Layer:
    """A layer's rows of 600 tokens, to be read into pages in pieces.  Pages hold NaN where nothing was stored."""

    def __init__(self, kv_heads: int = 2, group: int = 3, head_dim: int = 16, turned: int = 16) -> None:
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.queries = random_rows(ROWS, kv_heads * group * head_dim, 1) * np.float32(3)
        self.keys = random_rows(ROWS, kv_heads * head_dim, 2)
        self.values = random_rows(ROWS, kv_heads * head_dim, 3)
        self.table = rotation_table(ROWS, turned, 10000.0)

    def cache(self, page_tokens: int) -> tuple[PagedCache, list[int]]:
        count = -(-TOKENS // page_tokens) + 2
        shape = CacheShape(
            layers=2, pages=count, page_tokens=page_tokens, kv_heads=self.kv_heads, head_dim=self.head_dim
        )
        cache = PagedCache(shape)
        cache.memory[...] = np.nan
        return cache, [int(page) for page in np.random.default_rng(page_tokens).permutation(count)]

    def read(
        self, cuts: list[int], *, threads: int = 1, page_tokens: int = 64, padding: float = 0, window: int = 0
    ) -> np.ndarray:
        """What each token attends to, when chunks end at `cuts`; all other rows of their tiles are `padding`."""
        got = np.full((cuts[-1], self.queries.shape[1]), np.nan, np.float32)
        cache, pages = self.cache(page_tokens)
        with pool(threads) as opened:
            for start, end in pairwise([0, *cuts]):
                first, last = start // TILE * TILE, -(-end // TILE) * TILE
                real = slice(start - first, end - first)
                rows = [np.full((last - first, array.shape[1]), padding, np.float32) for array in self.arrays]
                for row, array in zip(rows, self.arrays, strict=True):
                    row[real] = array[start:end]
                out = np.full_like(rows[0], np.nan)
                where = (1, window, self.head_dim**-0.5, pages, first, start, end)
                kernels.attend_tiles(opened, *rows, self.table, cache.memory, *where, out)
                assert np.isfinite(out).all()
                got[start:end] = out[real]
        return got

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.queries, self.keys, self.values

    def plain(self, window: int = 0) -> np.ndarray:
        """The same by NumPy's kernels."""
        tiles, (cache, pages) = TileKernels(Workers(1)), self.cache(64)
        queries, keys = self.queries.copy(), self.keys.copy()
        for rows in (queries, keys):
            tiles.rotate(rows, self.table, self.head_dim, range(ROWS))
        heads = (TOKENS, self.kv_heads, self.head_dim)
        cache.write(1, pages, 0, keys[:TOKENS].reshape(heads), self.values[:TOKENS].reshape(heads))
        out = np.empty_like(queries)
        sight = Sight(1, None, self.head_dim**-0.5, window)
        attend_tiles(Workers(1), queries, Stored(cache, sight, pages), 0, TOKENS, out)
        return out[:TOKENS]


WINDOWS = [5, 31, 100]
CUTS = [1, 2, 19, 70, 100, 128, 255, 257, 300, 301, 512, TOKENS]


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("sizes", [(2, 3, 16, 16), (1, 2, 6, 4), (3, 1, 64, 64), (1, 5, 20, 8)])
def test_rows_attend_to_what_is_before_them_as_the_plain_kernels_do(sizes: tuple[int, int, int, int]) -> None:
    layer = Layer(*sizes)
    np.testing.assert_allclose(layer.read([TOKENS]), layer.plain(), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("window", WINDOWS)
def test_rows_attend_to_their_window_as_the_plain_kernels_do(window: int) -> None:
    layer = Layer()
    np.testing.assert_allclose(layer.read([TOKENS], window=window), layer.plain(window), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("page_tokens", [1, 48, 64, 4096])
def test_a_row_attends_with_the_same_bits_however_chunks_are_cut(threads: int, page_tokens: int) -> None:
    layer = Layer()
    whole = layer.read([TOKENS])
    cut = layer.read(CUTS, threads=threads, page_tokens=page_tokens, padding=7)
    assert cut.tobytes() == whole.tobytes()


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("window", WINDOWS)
def test_a_row_attends_to_its_window_with_the_same_bits_however_chunks_are_cut(window: int) -> None:
    layer = Layer()
    whole = layer.read([TOKENS], window=window)
    cut = layer.read(CUTS, threads=2, page_tokens=48, padding=7, window=window)
    assert cut.tobytes() == whole.tobytes()


@pytest.mark.usefixtures("_each_set")
@pytest.mark.parametrize("window", [0, 5])
def test_a_row_attends_with_the_same_bits_wherever_a_short_read_ends(window: int) -> None:
    layer = Layer()
    whole = layer.read([TOKENS], window=window)
    for count in COUNTS:
        assert layer.read([count], window=window).tobytes() == whole[:count].tobytes()


@pytest.mark.usefixtures("_each_set")
def test_later_rows_that_are_no_numbers_change_nothing_before_them() -> None:
    layer = Layer()
    expected, (cache, pages) = layer.read([TOKENS]), layer.cache(64)
    for array in layer.arrays:
        array[300:] = np.nan
    out = np.full_like(layer.queries, np.nan)
    with pool(1) as one:
        where = (1, 0, layer.head_dim**-0.5, pages, 0, 0, TOKENS)
        kernels.attend_tiles(one, *layer.arrays, layer.table, cache.memory, *where, out)
    assert out[:300].tobytes() == expected[:300].tobytes()


@pytest.mark.usefixtures("_each_set")
def test_very_large_scores_do_not_overflow() -> None:
    layer = Layer()
    layer.queries *= np.float32(1000)
    np.testing.assert_allclose(layer.read([TOKENS]), layer.plain(), rtol=1e-3, atol=1e-3)


def test_places_that_are_not_there_are_refused() -> None:
    layer = Layer()
    cache, pages = layer.cache(64)
    rows, out = [array[:TILE].copy() for array in layer.arrays], np.empty((TILE, layer.queries.shape[1]), np.float32)
    with pool(1) as one:
        for layer_number, given, where, error in [
            (2, pages, (0, 0, 64), ValueError),
            (1, [99], (0, 0, 64), IndexError),
            (1, pages[:1], (64, 64, 128), IndexError),
            (1, pages, (32, 32, 64), IndexError),
            (1, pages, (0, 5, 5), IndexError),
            (1, pages, (0, 0, 65), IndexError),
            (1, pages, (ROWS, ROWS, ROWS + 1), IndexError),
        ]:
            with pytest.raises(error):
                look = (layer_number, 0, 1.0, given, *where)
                kernels.attend_tiles(one, *rows, layer.table, cache.memory, *look, out)
