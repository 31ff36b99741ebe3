"""Rows that come alone, by the compiled kernels: what they compute, and that a row's bits are its own.

NumPy's kernels are the plain twin, and the `gguf` library the oracle of what weights mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from compiled_cases import kernels, pool, using, weight
from quantised_cases import BLOCK_BYTES, KINDS, SUPER_BLOCKS, numbers_of, random_bytes, random_rows

from strata.cpu.attention import Stored, attend_rows
from strata.cpu.cache import PagedCache
from strata.cpu.kernels import RowKernels, rotation_table
from strata.cpu.workers import Workers
from strata.models.ops import CacheShape, Sight

EPS = 1e-5
ROWS = 17
THREADS = (1, 2, 4)

Operation = Callable[[kernels.Pool, np.ndarray], np.ndarray]


@pytest.fixture(autouse=True, params=kernels.sets())
def _each_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every instruction set that can run here."""
    with using(request.param):
        yield


def product(*parts: tuple[str, int, int, np.ndarray], gated: bool = False, add: bool = False) -> Operation:
    weights = kernels.Weights(parts, gated)
    outputs = parts[0][1] if gated else sum(part[1] for part in parts)

    def run(threads: kernels.Pool, x: np.ndarray) -> np.ndarray:
        wide = np.full((len(x), outputs + 3), 1 if add else np.nan, np.float32)
        kernels.product(threads, weights, x, wide[:, :outputs], add)
        return wide[:, :outputs].copy()

    return run


# -- weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_weights_expand_to_the_numbers_that_the_library_reads(kind: str) -> None:
    part, numbers = weight(kind, 9, 512)
    rows = np.array([3, 0, 8, 3])
    out = np.full((4, 515), np.nan, np.float32)[:, :512]
    kernels.expand(kernels.Weights((part,), False), rows, out)
    np.testing.assert_array_equal(out, numbers[rows])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("F32", "F16", "BF16")])
def test_blocks_with_any_bytes_and_with_scales_that_are_subnormal_expand_right(kind: str) -> None:
    random = np.random.default_rng(5)
    raw = random_bytes(kind, 64, 256, 5)
    every = raw.reshape(64 * 256 // (256 if kind in SUPER_BLOCKS else 32), -1)
    every[:] = random.integers(0, 256, every.shape, np.uint8)
    scales = random.integers(0, 1 << 10, (len(every), 2)).astype(np.uint16)  # subnormal halves, and zero
    at = 208 if kind == "Q6_K" else 0
    size = 4 if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else 2
    every[:, at : at + size] = scales.view(np.uint8)[:, :size]
    out = np.empty((64, 256), np.float32)
    kernels.expand(kernels.Weights(((kind, 64, 256, raw.reshape(-1)),), False), np.arange(64), out)
    np.testing.assert_array_equal(out, numbers_of(kind, raw, 256))


def test_a_row_of_weights_that_is_not_there_is_refused() -> None:
    weights = kernels.Weights((weight("Q8_0", 4, 32)[0], weight("F32", 3, 32)[0]), False)
    out = np.empty((1, 32), np.float32)
    kernels.expand(weights, np.array([6]), out)
    for row in (-1, 7):
        with pytest.raises(IndexError, match=f"no row {row}"):
            kernels.expand(weights, np.array([row]), out)


@pytest.mark.parametrize(("rows", "columns", "size"), [(2, 32, 21), (1, 48, 30), (0, 32, 0), (1 << 62, 32, 20)])
def test_bytes_that_do_not_make_the_shape_are_refused(rows: int, columns: int, size: int) -> None:
    with pytest.raises(ValueError, match="don't make"):
        kernels.Weights((("Q4_1", rows, columns, np.zeros(size, np.uint8)),), False)


def test_a_kind_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="IQ1_S"):
        kernels.Weights((("IQ1_S", 1, 32, np.zeros(20, np.uint8)),), False)


# -- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_is_that_of_the_numbers(kind: str) -> None:
    (one, first), (other, second) = weight(kind, 50, 512), weight(kind, 7, 512, 2)
    x = random_rows(5, 512)
    with pool(1) as threads:
        out = product(one, other)(threads, x)
    expected = x.astype(np.float64) @ np.concatenate((first, second)).T
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_one_input_alone_gives_the_weight_to_the_bit(kind: str) -> None:
    part, numbers = weight(kind, 6, 512)
    with pool(1) as threads:
        run = product(part)
        for column in [*range(40), 255, 256, 300, 511]:
            for rows in (1, 2):
                x = np.zeros((rows, 512), np.float32)
                x[-1, column] = 1
                np.testing.assert_array_equal(run(threads, x)[-1], numbers[:, column])


BITS = {
    **{kind: (512, product(weight(kind, 37, 512)[0])) for kind in KINDS},
    "of three parts": (576, product(*(weight("Q4_1", outputs, 576, outputs)[0] for outputs in (576, 192, 192)))),
    "of parts of two kinds": (256, product(weight("Q4_K", 30, 256)[0], weight("Q6_K", 11, 256)[0])),
    "of parts in four forms": (96, product(*(weight(kind, 11, 96)[0] for kind in ("Q4_0", "Q5_1", "Q8_0", "F16")))),
    "of an odd width": (45, product(weight("F16", 21, 45)[0])),
    "of one input": (1, product(weight("F32", 5, 1)[0])),
    "added": (1536, product(weight("Q4_1", 70, 1536)[0], add=True)),
    "gated": (576, product(weight("Q4_1", 77, 576)[0], weight("Q4_1", 77, 576, 2)[0], gated=True)),
    "gated by another kind": (64, product(weight("Q8_0", 9, 64)[0], weight("F32", 9, 64, 2)[0], gated=True)),
}


@pytest.mark.parametrize("case", BITS)
def test_a_row_has_the_same_bits_among_1_to_17_and_on_1_2_and_4_threads(case: str) -> None:
    width, run = BITS[case]
    x = random_rows(ROWS, width + 5)[:, :width]
    for count in THREADS:
        with pool(count) as threads:
            if count == 1:
                alone = np.concatenate([run(threads, x[at : at + 1]) for at in range(ROWS)])
            for rows in range(1, ROWS + 1):
                start = ROWS - rows
                assert run(threads, x[start:]).tobytes() == alone[start:].tobytes(), (count, rows)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K", "F16"])
def test_neighbours_that_are_no_numbers_change_nothing(kind: str) -> None:
    run = product(weight(kind, 20, 512)[0])
    x = random_rows(4, 512)
    with pool(1) as threads:
        expected = run(threads, x[2:3])
        x[[0, 1, 3]] = [[np.nan], [np.inf], [3e38]]
        assert run(threads, x)[2:3].tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("scale", [1e-42, 1e-20, 1e30])
def test_a_product_of_very_small_and_of_very_large_inputs_is_right(scale: float, kind: str) -> None:
    part, numbers = weight(kind, 20, 576)
    x = random_rows(2, 576) * np.float32(scale)
    with pool(1) as threads:
        out = product(part)(threads, x)
    expected = x.astype(np.float64) @ numbers.T
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max() + 1e-43)


WHOLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *SUPER_BLOCKS)
"""Kinds whose inputs may become whole numbers: an input is then right to 1 in 2^20 of the largest of its 32."""


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("code", [0x00, 0x80, 0x7F, 0xFF])
@pytest.mark.parametrize("least", [0.9999999, 1.0])
def test_sums_of_the_largest_codes_and_inputs_do_not_overflow(kind: str, code: int, least: float) -> None:
    """Inputs just below a power of two have as many bits as one can have; they are of one sign, and of both."""
    raw = np.full((9, BLOCK_BYTES[kind]), code, np.uint8)
    scales = np.array([0.5, 0.25] if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else [0.5], np.float16).view(np.uint8)
    at = BLOCK_BYTES[kind] - 2 if kind == "Q6_K" else 0
    raw[:, at : at + len(scales)] = scales
    numbers = numbers_of(kind, raw, width := 256 if kind in SUPER_BLOCKS else 32)
    x = np.full((4, width), least, np.float32)
    x[1] = -x[1]
    x[2, ::2] = -x[2, ::2]
    x[3, width // 2 :] = -x[3, width // 2 :]
    with pool(1) as threads:
        out = product((kind, 9, width, raw.reshape(-1)))(threads, x)
    expected = x.astype(np.float64) @ numbers.T
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-5 * np.abs(numbers).max())


@pytest.mark.parametrize("kind", WHOLE)
def test_an_input_beside_a_very_large_one_is_right_by_the_measure_of_that_one(kind: str) -> None:
    part, numbers = weight(kind, 40, 512)
    x = random_rows(3, 512)
    x[:, 70] = 1e4
    x[1] *= 1e-30
    with pool(1) as threads:
        out = product(part)(threads, x)
    expected = x.astype(np.float64) @ numbers.T
    largest = np.abs(x).reshape(3, -1, 32).max(axis=2).astype(np.float64)
    weights = np.abs(numbers.astype(np.float64)).reshape(40, -1, 32).sum(axis=2)
    assert (np.abs(out - expected) <= largest @ weights.T * 2.0**-20 + np.abs(expected) * 2.0**-20).all()


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_row_with_an_input_that_is_no_number_gives_none(kind: str, number: float) -> None:
    x = random_rows(2, 512)
    x[1, 300] = number
    with pool(1) as threads:
        out = product(weight(kind, 20, 512)[0])(threads, x)
    assert np.isfinite(out[0]).all()
    assert not np.isfinite(out[1]).any()


def test_a_gate_is_that_of_numpy_and_closes_where_it_overflows() -> None:
    (gate, closed), (up, through) = weight("F32", 40, 64), weight("F32", 40, 64, 2)
    x = random_rows(3, 64) * np.array([[1], [30], [3000]], np.float32)
    with pool(1) as threads:
        out = product(gate, up, gated=True)(threads, x)
    a, b = x.astype(np.float64) @ closed.T, x.astype(np.float64) @ through.T
    with np.errstate(over="ignore"):
        expected = a / (1 + np.exp(-a)) * b
    for row, wanted in zip(out, expected, strict=True):
        np.testing.assert_allclose(row, wanted, rtol=1e-3, atol=1e-5 * np.abs(wanted).max())
    steep = np.full((16, 16), -100, np.float32).reshape(-1).view(np.uint8)
    with pool(1) as threads:
        shut = product(("F32", 16, 16, steep), ("F32", 16, 16, steep), gated=True)
        assert not shut(threads, np.ones((2, 16), np.float32)).any()


@pytest.mark.parametrize("width", [1, 7, 45, 576])
def test_a_norm_is_that_of_numpy_and_a_row_s_own(width: int) -> None:
    x, weights = random_rows(9, width + 2)[:, :width], random_rows(1, width, 3)[0]
    out, plain = np.full((2, 9, width), np.nan, np.float32)
    kernels.norm(x, weights, EPS, out)
    RowKernels(Workers(1)).norm(x, weights, EPS, plain)
    np.testing.assert_allclose(out, plain, rtol=1e-5)
    one = np.empty((1, width), np.float32)
    for at in range(9):
        kernels.norm(x[at : at + 1], weights, EPS, one)
        assert one.tobytes() == out[at : at + 1].tobytes()


# -- attention ----------------------------------------------------------------------------------------------------

TOKENS = 1100
AROUND_SPANS = [0, 1, 2, 3, 62, 63, 64, 65, 255, 256, 383, 510, 511, 512, 513, 767, 1023, 1024, 1099]
SHAPES = [(2, 3, 64, 64), (1, 1, 6, 4), (2, 2, 16, 8), (1, 4, 40, 40)]
"""Heads of keys, of queries to each, elements of a head and those that turn."""


class Case:
    """One sequence in pages, and the rows that might come at each position."""

    def __init__(self, shape: tuple[int, int, int, int]) -> None:
        self.kv_heads, group, self.head_dim, turned = shape
        keys = self.kv_heads * self.head_dim
        self.queries = random_rows(TOKENS, group * keys, 1) * np.float32(2)
        self.keys, self.values = random_rows(TOKENS, keys, 2), random_rows(TOKENS, keys, 3)
        self.table = rotation_table(TOKENS, turned, 10000.0)

    def stored(self, tokens: int, *, page_tokens: int = 64, seed: int = 1) -> tuple[PagedCache, list[int]]:
        """So many tokens, turned, in shuffled pages, and NaN wherever nothing was written."""
        count = -(-TOKENS // page_tokens) + 2
        shape = CacheShape(
            layers=2, pages=count, page_tokens=page_tokens, kv_heads=self.kv_heads, head_dim=self.head_dim
        )
        cache = PagedCache(shape)
        cache.memory[...] = np.nan
        pages = [int(page) for page in np.random.default_rng(seed).permutation(count)]
        keys = self.keys[:tokens].copy()
        RowKernels(Workers(1)).rotate(keys, self.table, self.head_dim, range(tokens))
        shaped = (tokens, self.kv_heads, self.head_dim)
        cache.write(1, pages, 0, keys.reshape(shaped), self.values[:tokens].reshape(shaped))
        return cache, pages

    def attend(
        self, threads: kernels.Pool, cache: PagedCache, pages: list[int], positions: list[int], window: int = 0
    ) -> np.ndarray:
        out = np.full((len(positions), self.queries.shape[1] + 1), np.nan, np.float32)[:, :-1]
        rows = [array[positions] for array in (self.queries, self.keys, self.values)]
        places = [(pages, position) for position in positions]
        look = (1, window, self.head_dim**-0.5)
        kernels.attend(threads, *rows, self.table, cache.memory, *look, places, out)
        return out.copy()

    def plain(self, cache: PagedCache, pages: list[int], positions: list[int], window: int = 0) -> np.ndarray:
        queries = self.queries[positions]
        RowKernels(Workers(1)).rotate(queries, self.table, self.head_dim, positions)
        out = np.empty_like(queries)
        stored = Stored(cache, Sight(1, None, self.head_dim**-0.5, window), pages)
        attend_rows(Workers(1), queries, [(stored, position) for position in positions], out)
        return out


@pytest.mark.parametrize("window", [0, 100, 600])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_is_that_of_numpy(shape: tuple[int, int, int, int], window: int) -> None:
    case = Case(shape)
    cache, pages = case.stored(TOKENS)
    with pool(2) as threads:
        got = case.attend(threads, cache, pages, AROUND_SPANS, window)
    np.testing.assert_allclose(got, case.plain(cache, pages, AROUND_SPANS, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [1, 100, 600])
def test_what_lies_before_a_window_is_not_looked_at(window: int) -> None:
    case = Case(SHAPES[0])
    with pool(1) as threads:
        for position in AROUND_SPANS[-4:]:
            cache, pages = case.stored(TOKENS)
            expected = case.attend(threads, cache, pages, [position], window)
            nothing = np.full((position + 1 - window, case.kv_heads, case.head_dim), np.nan, np.float32)
            cache.write(1, pages, 0, nothing, nothing)
            assert case.attend(threads, cache, pages, [position], window).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("shape", "window"), [*((shape, 0) for shape in SHAPES), (SHAPES[0], 100)], ids=str)
def test_a_row_attends_with_the_same_bits_alone_and_among_others_on_any_threads(
    shape: tuple[int, int, int, int], window: int
) -> None:
    case = Case(shape)
    cache, pages = case.stored(TOKENS)
    with pool(1) as threads:
        alone = [case.attend(threads, cache, pages, [position], window) for position in AROUND_SPANS]
    for count in THREADS:
        with pool(count) as threads:
            for rows in range(1, ROWS + 1):
                got = case.attend(threads, cache, pages, AROUND_SPANS[-rows:], window)
                assert got.tobytes() == b"".join(row.tobytes() for row in alone[-rows:]), (count, rows)


def test_a_row_stores_itself_and_looks_at_nothing_after_it_nor_at_the_pages_numbers() -> None:
    case = Case(SHAPES[0])
    with pool(1) as threads:
        for position in AROUND_SPANS:
            expected = case.attend(threads, *case.stored(TOKENS), [position])
            for page_tokens in (1, 48, 4096):
                cache, pages = case.stored(position, page_tokens=page_tokens, seed=9)
                assert case.attend(threads, cache, pages, [position]).tobytes() == expected.tobytes()
                page, inside = pages[position // page_tokens], position % page_tokens
                stored = cache.memory[page, 1, 1, :, inside].reshape(-1)
                assert stored.tobytes() == case.values[position].tobytes()


def test_rows_that_follow_each_other_attend_to_those_before_them_in_the_same_call() -> None:
    case = Case(SHAPES[0])
    for count in THREADS:
        with pool(count) as threads:
            for first in (0, 60, 505):
                cache, pages = case.stored(max(first, 1))
                places = list(range(first, first + 9))
                expected = case.attend(threads, *case.stored(TOKENS), places)
                assert case.attend(threads, cache, pages, places).tobytes() == expected.tobytes()


def test_very_large_scores_do_not_overflow() -> None:
    case = Case(SHAPES[0])
    case.queries *= np.float32(1000)
    with pool(1) as threads:
        assert np.isfinite(case.attend(threads, *case.stored(TOKENS), [700])).all()


def test_places_that_are_not_there_are_refused() -> None:
    case = Case(SHAPES[2])
    cache, pages = case.stored(TOKENS)
    with pool(1) as threads:
        for wrong, position in ((pages[:3], 200), ([999], 0), ([-1], 0)):
            with pytest.raises(IndexError):
                case.attend(threads, cache, wrong, [position])
        with pytest.raises(ValueError, match="fit"):
            kernels.attend(
                threads,
                *(np.zeros((1, 7), np.float32),) * 3,
                case.table,
                cache.memory,
                1,
                0,
                1.0,
                [(pages, 0)],
                case.keys,
            )


# -- threads ------------------------------------------------------------------------------------------------------


def test_a_pool_that_is_closed_refuses_work_and_closing_twice_does_no_harm() -> None:
    with pool(3) as threads:
        assert threads.threads == 3
        run = product(weight("F32", 600, 64)[0])
        for _ in range(300):
            run(threads, random_rows(1, 64))
        threads.close()
        with pytest.raises(RuntimeError, match="closed"):
            run(threads, random_rows(1, 64))
