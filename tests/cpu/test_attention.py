"""Attention over pages: what it computes, and that a row's bits depend on its own position and what is before it."""

from __future__ import annotations

import numpy as np
import pytest

from strata.cpu.attention import Stored, attend_rows, attend_tiles
from strata.cpu.cache import PagedCache
from strata.cpu.kernels import TILE
from strata.cpu.workers import Workers
from strata.models.ops import CacheShape, Sight

KV_HEADS, GROUP, HEAD_DIM = 2, 3, 16
WIDTH = KV_HEADS * GROUP * HEAD_DIM
TOKENS = 1100
WINDOWS = [0, 1, 63, 100, 300]
AROUND_SPANS = [0, 1, 62, 63, 64, 65, 254, 255, 256, 257, 382, 383, 384, 385, 510, 511, 512, 513, 767, 768, 1023, 1024]


@pytest.fixture(scope="module")
def workers() -> Workers:
    return Workers(1)


def random_rows(rows: int, *shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, *shape), dtype=np.float32)


QUERIES = random_rows(-(-TOKENS // TILE) * TILE, WIDTH, seed=1) * np.float32(3)
KEYS = random_rows(TOKENS, KV_HEADS, HEAD_DIM, seed=2)
VALUES = random_rows(TOKENS, KV_HEADS, HEAD_DIM, seed=3)


def stored(tokens: int, *, page_tokens: int = 64, seed: int = 1, window: int = 0) -> Stored:
    """So many tokens in shuffled pages, and NaN wherever nothing was written."""
    count = -(-TOKENS // page_tokens) + 2
    cache = PagedCache(CacheShape(layers=2, pages=count, page_tokens=page_tokens, kv_heads=KV_HEADS, head_dim=HEAD_DIM))
    pages = [int(page) for page in np.random.default_rng(seed).permutation(count)]
    nothing = np.full((count * page_tokens, KV_HEADS, HEAD_DIM), np.nan, np.float32)
    cache.write(1, pages, 0, nothing, nothing)
    cache.write(1, pages, 0, KEYS[:tokens], VALUES[:tokens])
    return Stored(cache, Sight(1, None, HEAD_DIM**-0.5, window), pages)


def plain(position: int, window: int = 0) -> np.ndarray:
    """One row in float64, all keys that it sees at once."""
    seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
    out = np.empty((KV_HEADS, GROUP, HEAD_DIM))
    query = QUERIES[position].astype(np.float64).reshape(KV_HEADS, GROUP, HEAD_DIM)
    for head in range(KV_HEADS):
        scores = query[head] @ KEYS[seen, head].astype(np.float64).T / np.sqrt(HEAD_DIM)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[head] = weights @ VALUES[seen, head] / weights.sum(-1, keepdims=True)
    return out.reshape(-1)


def in_tiles(workers: Workers, what: Stored, first: int, tiles: int, end: int) -> np.ndarray:
    out = np.full((tiles * TILE, WIDTH), np.nan, np.float32)
    attend_tiles(workers, QUERIES[first : first + tiles * TILE], what, first, end, out)
    return out


def alone(workers: Workers, what: Stored, positions: list[int]) -> np.ndarray:
    out = np.full((len(positions), WIDTH), np.nan, np.float32)
    attend_rows(workers, QUERIES[positions], [(what, position) for position in positions], out)
    return out


@pytest.mark.parametrize("window", WINDOWS)
def test_tiles_attend_to_what_is_before_them(workers: Workers, window: int) -> None:
    """Of a window of keys, to its last ones."""
    got = in_tiles(workers, stored(TOKENS, window=window), 0, len(QUERIES) // TILE, TOKENS)
    for position in AROUND_SPANS:
        np.testing.assert_allclose(got[position], plain(position, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_lone_rows_attend_to_what_is_before_them(workers: Workers, window: int) -> None:
    got = alone(workers, stored(TOKENS, window=window), AROUND_SPANS)
    for row, position in zip(got, AROUND_SPANS, strict=True):
        np.testing.assert_allclose(row, plain(position, window), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_what_lies_before_a_window_is_not_looked_at(workers: Workers, window: int) -> None:
    """By a lone row; the rows of a tile meet it with the weight 0."""
    what = stored(TOKENS, window=window)
    [expected] = alone(workers, what, [900])
    before = 901 - window if window else 0
    nothing = np.full((before, KV_HEADS, HEAD_DIM), np.nan, np.float32)
    what.cache.write(1, what.pages, 0, nothing, nothing)
    assert alone(workers, what, [900]).tobytes() == expected.tobytes()


@pytest.mark.parametrize("window", [0, 100])
def test_a_row_in_a_tile_has_the_same_bits_wherever_the_sequence_ends(workers: Workers, window: int) -> None:
    whole = in_tiles(workers, stored(TOKENS, window=window), 0, len(QUERIES) // TILE, TOKENS)
    for end in [*range(1, 71), 255, 256, 257, 320, 383, 384, 385, 400, 512, 700]:
        first = (end - 1) // TILE * TILE
        got = in_tiles(workers, stored(end, window=window), first, 1, end)
        assert got[: end - first].tobytes() == whole[first:end].tobytes(), end
        assert np.isfinite(got).all()


@pytest.mark.parametrize("window", [0, 100])
def test_a_row_in_a_tile_has_the_same_bits_whichever_tiles_are_computed_together(workers: Workers, window: int) -> None:
    what = stored(TOKENS, window=window)
    whole = in_tiles(workers, what, 0, len(QUERIES) // TILE, TOKENS)
    for first in range(0, TOKENS - 2 * TILE, TILE):
        for tiles in (1, 2):
            end = first + tiles * TILE
            assert in_tiles(workers, what, first, tiles, end).tobytes() == whole[first:end].tobytes()


@pytest.mark.parametrize("position", AROUND_SPANS)
def test_a_lone_row_has_the_same_bits_whatever_comes_after_it_and_beside_it(workers: Workers, position: int) -> None:
    [expected] = alone(workers, stored(TOKENS), [position])
    [nothing_after] = alone(workers, stored(position + 1), [position])
    beside = alone(workers, stored(TOKENS), [900, position, 3])[1]
    assert nothing_after.tobytes() == expected.tobytes()
    assert beside.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("page_tokens", "window"), [(1, 0), (48, 0), (100, 0), (4096, 0), (1, 100), (48, 100)])
def test_the_bits_do_not_depend_on_the_pages(workers: Workers, page_tokens: int, window: int) -> None:
    usual, other = (stored(700, window=window), stored(700, page_tokens=page_tokens, seed=9, window=window))
    assert in_tiles(workers, usual, 0, 11, 700).tobytes() == in_tiles(workers, other, 0, 11, 700).tobytes()
    positions = [position for position in AROUND_SPANS if position < 700]
    assert alone(workers, usual, positions).tobytes() == alone(workers, other, positions).tobytes()


def test_one_thread_and_three_give_the_same_attention() -> None:
    what, several = stored(700), Workers(3)
    try:
        assert in_tiles(Workers(1), what, 0, 11, 700).tobytes() == in_tiles(several, what, 0, 11, 700).tobytes()
        assert alone(Workers(1), what, [699]).tobytes() == alone(several, what, [699]).tobytes()
    finally:
        several.close()


def test_very_large_scores_do_not_overflow(workers: Workers) -> None:
    what = stored(300)
    out = np.full((TILE, WIDTH), np.nan, np.float32)
    attend_tiles(workers, QUERIES[256:320] * np.float32(1000), what, 256, 300, out)
    assert np.isfinite(out).all()
