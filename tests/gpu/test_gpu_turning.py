"""Turning and storing beside plain arithmetic in float64; and each row by itself, to the bit."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest
from hard import MAGNITUDES, rounded, rows
from stores import UNTURNED

from strata.gpu.arrays import DeviceArray
from strata.gpu.attention import Rows
from strata.gpu.cache import STORED, PagedCache
from strata.gpu.ops import GpuOps
from strata.models.ops import CacheShape, Sight

LAYERS, PAGES = 2, 9
NUMBERS = ("f32", "f16", "bf16")
DIGITS = {"f32": 24, "f16": 11, "bf16": 8}

SEQUENCE = [7, 2, 5, 0, 8]
"""Pages of the one that is read; those of rows that come alone are the same, by turns."""


class Given:
    """Queries, keys and values of some rows, in wider ones, and a cache that holds nothing but zeros."""

    def __init__(
        self,
        card: GpuOps,
        count: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        turned: int,
        page_tokens: int = 16,
        numbers: str = "f32",
        magnitude: str = "plain",
    ) -> None:
        self.card, self.count, self.head_dim, self.numbers = card, count, head_dim, numbers
        shape = CacheShape(LAYERS, PAGES, page_tokens, kv_heads, head_dim)
        self.cache = PagedCache(card._device, shape, STORED[numbers])
        self.layout = PAGES, *shape.of_page
        self.angles = card.rotation(5 * page_tokens, turned, 1e4) if turned else UNTURNED
        self.ends = np.cumsum([3, heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]).tolist()
        self.plain = rows(count, self.ends[-1] + 5, 1, magnitude)

    def rows(self, array: DeviceArray) -> Rows:
        a, b, c, d = self.ends
        return Rows(array[:, a:b], array[:, b:c], array[:, c:d])

    def places(self, positions: Sequence[int]) -> list[tuple[list[int], int]]:
        """Each in a sequence of its own: no two write to the same page."""
        return [([page] * (position + 1), position) for page, position in enumerate(positions)]

    def read(self, first: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """What comes of rows start .. stop - 1, at positions first, ...: the wider rows, and the pages' bits."""
        self.clear()
        array = self.card.stored(self.plain)
        sight = Sight(1, self.angles, 1.0)
        self.card.attention.turn_and_store(self.rows(array)[start:stop], self.cache, sight, SEQUENCE, first)
        return self.card.numbers(array), self.bits()

    def lone(self, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The same of the first rows, each at its place."""
        self.clear()
        array, attention = self.card.stored(self.plain), self.card.attention
        placed = attention.place(self.cache, self.places(positions))
        attention.turn_and_store_rows(
            self.rows(array)[: len(positions)], self.cache, Sight(1, self.angles, 1.0), placed
        )
        return self.card.numbers(array), self.bits()

    def clear(self) -> None:
        self.card._device.zero(self.cache.pointer, PAGES * self.cache.page_nbytes)

    def bits(self) -> np.ndarray:
        bits = np.empty(self.layout, self.cache.stored.bits)
        self.card._device.download(self.cache.pointer, bits)
        return bits

    def check(self, got: tuple[np.ndarray, np.ndarray], where: Sequence[tuple[int, int]]) -> None:
        """`where`: of each row its page and its position.  Nothing else is touched, nor the keys that were given."""
        array, bits = got
        a, b, c, d = self.ends
        plain, stored = self.plain[: len(where)], numbers_of(bits, self.numbers)
        positions = [position for _, position in where]
        near(array[: len(where), a:b], *self.turn(plain[:, a:b], positions), digits=24)
        keys, sizes = self.turn(plain[:, b:c], positions)
        untouched = np.ones(bits.shape, bool)
        for row, (page, position) in enumerate(where):
            at = page, 1, slice(None), slice(None), position % self.cache.page_tokens
            untouched[at] = False
            of_key, of_value = stored[at].reshape(2, -1)
            kept_as(of_key, of_value, keys[row], sizes[row], plain[row, c:d], self.numbers)
        assert not bits[untouched].any()
        array[: len(where), a:b] = plain[:, a:b]
        assert array.tobytes() == self.plain.tobytes()

    def turn(self, some: np.ndarray, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """In float64; and the sizes of what was added."""
        exact = some.astype(np.float64)
        size = np.abs(exact)
        if turned := self.angles.columns:
            angles = self.card.numbers(self.angles)[positions].astype(np.float64).view(np.complex128)[:, None]
            pairs = exact.reshape(len(some), -1, self.head_dim)[..., :turned]
            sizes = size.reshape(len(some), -1, self.head_dim)[..., :turned]
            turns = (pairs[..., ::2] + 1j * pairs[..., 1::2]) * angles
            pairs[..., ::2], pairs[..., 1::2] = turns.real, turns.imag
            sizes[...] = np.repeat(sizes[..., ::2] + sizes[..., 1::2], 2, axis=-1)
        return exact, size


def numbers_of(bits: np.ndarray, numbers: str) -> np.ndarray:
    if numbers == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits if numbers == "f32" else bits.view(np.float16).astype(np.float32)


def near(got: np.ndarray, exact: np.ndarray, size: np.ndarray, *, digits: int, least: float = 0.0) -> None:
    """Two roundings of float32, and one to so many digits."""
    bound = size * 2.0**-22 + np.abs(exact) * 1.01 * 2.0**-digits + least + 3e-45
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def kept_as(
    of_key: np.ndarray, of_value: np.ndarray, key: np.ndarray, size: np.ndarray, value: np.ndarray, numbers: str
) -> None:
    """What 16 bits can't hold, or whose value they can't hold, is no number, and its value zero."""
    bad = np.zeros(len(key), bool)
    if numbers != "f32":
        bad = ~np.isfinite(rounded(key.astype(np.float32), numbers)) | ~np.isfinite(rounded(value, numbers))
    assert np.isnan(of_key[bad]).all()
    least = 2.0**-25 if numbers == "f16" else 2.0**-134 if numbers == "bf16" else 0.0
    near(of_key[~bad], key[~bad], size[~bad], digits=DIGITS[numbers], least=least)
    assert of_value.tobytes() == np.where(bad, np.float32(0), rounded(value, numbers)).tobytes()


SHAPES = (
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "turned": 64},
    {"heads": 2, "kv_heads": 2, "head_dim": 256, "turned": 256},
    {"heads": 4, "kv_heads": 1, "head_dim": 136, "turned": 40},
    {"heads": 1, "kv_heads": 1, "head_dim": 15, "turned": 4},
    {"heads": 3, "kv_heads": 2, "head_dim": 6, "turned": 0},
)


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape["head_dim"]))
def test_rows_are_turned_by_their_positions_and_stored_there(
    card: GpuOps, shape: dict[str, int], magnitude: str, numbers: str
) -> None:
    """Across the edges of pages; and rows that come alone."""
    given = Given(card, 20, **shape, numbers=numbers, magnitude=magnitude)
    given.check(given.read(13, 0, 20), [(SEQUENCE[position // 16], position) for position in range(13, 33)])
    positions = [16, 0, 79, 15, 7]
    given.check(given.lone(positions), list(enumerate(positions)))


@pytest.mark.parametrize("page_tokens", [1, 7, 64])
def test_pages_may_hold_any_number_of_positions(card: GpuOps, page_tokens: int) -> None:
    given = Given(card, 3, heads=2, kv_heads=1, head_dim=16, turned=16, page_tokens=page_tokens)
    first = 2 * page_tokens - 1
    where = [(SEQUENCE[position // page_tokens], position) for position in range(first, first + 3)]
    given.check(given.read(first, 0, 3), where)


@pytest.mark.parametrize(
    ("numbers", "bad", "wrong"),
    [
        *((numbers, bad, [2, 3, 26]) for numbers in ("f16", "bf16") for bad in (np.inf, np.nan)),
        *(("f16", 80000.0, [3, 26]), ("bf16", 3.4e38, [26])),
    ],
)
def test_what_sixteen_bits_cannot_hold_is_no_number_as_it_is_once_it_is_turned(
    card: GpuOps, numbers: str, bad: float, wrong: list[int]
) -> None:
    """B33: both of a pair or one, or none of what it is turned to; and no other pair's.  Values there are zero."""
    given = Given(card, 2, heads=1, kv_heads=2, head_dim=16, turned=8, numbers=numbers)
    _, keys, values, _ = given.ends
    given.plain[1, [keys + 3, values + 16 + 10]] = bad
    _, bits = given.read(5, 0, 2)
    of_keys, of_values = numbers_of(bits, numbers)[SEQUENCE[0], 1, :, :, 6].reshape(2, -1)
    assert np.flatnonzero(np.isnan(of_keys)).tolist() == wrong
    assert np.flatnonzero(of_values == 0).tolist() == wrong


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_row_is_turned_and_stored_with_the_same_bits_at_every_count_of_rows(card: GpuOps, numbers: str) -> None:
    """Of a chunk wherever it is cut, and of rows that come alone."""
    given = Given(card, 40, heads=3, kv_heads=2, head_dim=24, turned=16, numbers=numbers, magnitude="mixed")
    queries = slice(*given.ends[:2])
    whole, stored = given.read(11, 0, 40)
    for count in (1, 2, 3, 7, 8, 9, 17, 33, 39):
        for start in (0, 40 - count):
            some, bits = given.read(11 + start, start, start + count)
            assert some[start : start + count, queries].tobytes() == whole[start : start + count, queries].tobytes()
            for position in range(11 + start, 11 + start + count):
                at = SEQUENCE[position // 16], 1, slice(None), slice(None), position % 16
                assert bits[at].tobytes() == stored[at].tobytes(), (count, start, position)
    positions = [12, 0, 79, 40, 15, 16, 33, 3, 64]
    whole, stored = given.lone(positions)
    for count in range(1, 9):
        some, bits = given.lone(positions[:count])
        assert some[:count].tobytes() == whole[:count].tobytes()
        assert bits[:count].tobytes() == stored[:count].tobytes()


def test_a_row_is_turned_alike_in_a_chunk_and_alone(card: GpuOps) -> None:
    given = Given(card, 1, heads=3, kv_heads=2, head_dim=24, turned=24)
    (read, pages), (lone, others) = given.read(33, 0, 1), given.lone([33])
    assert read.tobytes() == lone.tobytes()
    assert pages[SEQUENCE[2]].tobytes() == others[0].tobytes()


def test_rows_that_come_alone_take_three_launches(driver: ctypes.CDLL, card: GpuOps) -> None:
    """One turns and stores, two attend."""
    given = Given(card, 2, heads=2, kv_heads=1, head_dim=16, turned=16)
    some, out = given.rows(card.stored(given.plain)), card.empty(2, 32)
    before = driver.fakecuda_launched()
    sight = Sight(1, given.angles, 0.25)
    card.attend_rows(some.queries, some.keys, some.values, sight, given.cache, given.places([5, 70]), out)
    assert driver.fakecuda_launched() - before == 3
