"""Keys and values in pages."""

from __future__ import annotations

import numpy as np
import pytest

from strata.cpu.cache import PagedCache
from strata.models.ops import CacheShape

PAGE_SIZES = [1, 3, 64, 100, 4096]


def cache_of(page_tokens: int, tokens: int = 300) -> PagedCache:
    pages = -(-tokens // page_tokens) + 2
    return PagedCache(CacheShape(layers=2, pages=pages, page_tokens=page_tokens, kv_heads=3, head_dim=4, slots=3))


def shuffled(page_tokens: int, seed: int, tokens: int = 300) -> list[int]:
    return [int(page) for page in np.random.default_rng(seed).permutation(-(-tokens // page_tokens) + 2)]


def random_rows(tokens: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((tokens, 3, 4), np.float32), rng.random((tokens, 3, 4), np.float32)


@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
def test_what_was_written_is_gathered_whatever_the_pages_and_the_pieces(page_tokens: int) -> None:
    cache, pages = cache_of(page_tokens), shuffled(page_tokens, 1)
    keys, values = random_rows(300)
    for start, end in ((0, 1), (1, 64), (64, 191), (191, 300)):
        cache.write(1, pages, start, keys[start:end], values[start:end])
    for start, end in ((0, 300), (5, 6), (63, 65), (128, 256)):
        out = np.empty((2, 3, end - start, 4), np.float32)
        cache.gather(1, pages, slice(None), start, end, out)
        np.testing.assert_array_equal(out[0], keys[start:end].swapaxes(0, 1))
        np.testing.assert_array_equal(out[1], values[start:end].swapaxes(0, 1))


def test_one_head_is_gathered_by_itself() -> None:
    cache, pages = cache_of(64), shuffled(64, 1)
    keys, values = random_rows(100)
    cache.write(0, pages, 0, keys, values)
    out = np.empty((2, 1, 100, 4), np.float32)
    cache.gather(0, pages, slice(2, 3), 0, 100, out)
    np.testing.assert_array_equal(out[:, 0], [keys[:, 2], values[:, 2]])


def test_room_behind_what_is_gathered_becomes_zero() -> None:
    cache = cache_of(64)
    out = np.full((2, 3, 10, 4), np.nan, np.float32)
    cache.gather(0, [1], slice(None), 0, 7, out)
    assert not out.any()


def test_a_position_beyond_the_pages_is_an_error_and_not_somebody_elses_page() -> None:
    cache = cache_of(64)
    with pytest.raises(IndexError):
        cache.write(0, [3], 64, *random_rows(1))
    with pytest.raises(IndexError):
        cache.gather(0, [3], slice(None), 0, 65, np.empty((2, 3, 65, 4), np.float32))


@pytest.mark.parametrize("page_tokens", PAGE_SIZES)
def test_equal_state_has_equal_bytes_in_whatever_pages_it_lies(page_tokens: int) -> None:
    digests = []
    for seed in (1, 2):
        cache, pages = cache_of(page_tokens), shuffled(page_tokens, seed)
        for layer in (0, 1):
            cache.write(layer, pages, 0, *random_rows(200))
            cache.write(layer, pages, 200, *random_rows(20, seed=seed))  # after the length that is asked for
        digests.append(b"".join(cache.page_bytes(pages, 200)))
    assert digests[0] == digests[1]
    assert len(digests[0]) == 200 * 2 * 2 * 3 * 4 * 4


def test_a_changed_number_changes_the_bytes() -> None:
    cache, pages = cache_of(64), shuffled(64, 1)
    keys, values = random_rows(200)
    cache.write(1, pages, 0, keys, values)
    before = b"".join(cache.page_bytes(pages, 200))
    keys[199, 2, 3] += 1
    cache.write(1, pages, 0, keys, values)
    assert b"".join(cache.page_bytes(pages, 200)) != before


@pytest.mark.parametrize("page_tokens", [3, 100])
def test_a_page_has_the_same_bytes_in_the_arena_and_in_another_page(page_tokens: int) -> None:
    cache, pages = cache_of(page_tokens), shuffled(page_tokens, 1)[:4]
    for layer in (0, 1):
        cache.write(layer, pages, 0, *random_rows(4 * page_tokens))
    before = b"".join(cache.page_bytes(pages, 4 * page_tokens))
    cache.copy_out(pages[1], 2)
    cache.copy_out(pages[3], 0)
    total = len(shuffled(page_tokens, 1))
    away = [pages[0], total + 2, pages[2], total]
    assert b"".join(cache.page_bytes(away, 4 * page_tokens)) == before
    for layer in (0, 1):
        cache.write(layer, [pages[1], pages[3]], 0, *random_rows(2 * page_tokens, seed=9))
    assert b"".join(cache.page_bytes(away, 4 * page_tokens)) == before
    cache.copy_in(0, pages[1])
    cache.copy_in(2, pages[3])
    assert b"".join(cache.page_bytes([pages[0], pages[3], pages[2], pages[1]], 4 * page_tokens)) == before


def test_a_page_in_the_arena_can_be_neither_written_nor_read() -> None:
    cache = cache_of(64)
    away = [len(shuffled(64, 1))]
    with pytest.raises(IndexError):
        cache.write(0, away, 0, *random_rows(1))
    with pytest.raises(IndexError):
        cache.gather(0, away, slice(None), 0, 1, np.empty((2, 3, 1, 4), np.float32))
