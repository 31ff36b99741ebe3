"""Attention, stored pages and replayed steps beside plain arithmetic in float64; and each row by itself, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hard import MAGNITUDES, rounded, rows
from stores import store

from strata.errors import ModelError
from strata.gpu.attention import PARTS_BYTES, Attention
from strata.gpu.cache import STORED, PagedCache
from strata.gpu.lone import LoneRows
from strata.gpu.ops import GpuOps
from strata.gpu.steps import GRAPHS, RecordedStep, Replaying
from strata.models.ops import CacheShape, Kernels, Sight

# -- attention ----------------------------------------------------------------------------------------------------

LAYERS, HEADS, KV_HEADS = 2, 4, 2
SIXTEEN_BITS = ("f16", "bf16")
NUMBERS = ("f32", *SIXTEEN_BITS)
"""That keys and values are kept as."""


class Sequence:
    """One sequence's keys and values in scattered pages; everything else in the cache is not a number."""

    def __init__(
        self,
        card: GpuOps,
        length: int,
        *,
        head_dim: int,
        page_tokens: int,
        scale: float = 1.0,
        numbers: str = "f32",
        magnitude: str = "plain",
    ) -> None:
        count = -(-length // page_tokens)
        shape = CacheShape(LAYERS, 2 * count + 1, page_tokens, KV_HEADS, head_dim)
        self.card, self.head_dim, self.numbers = card, head_dim, numbers
        self.cache = PagedCache(card._device, shape, STORED[numbers])
        self.pages = np.random.default_rng(3).permutation(shape.pages)[:count].tolist()
        self.keys = rows(length, KV_HEADS * head_dim, 4) * np.float32(scale)
        self.values = rows(length, KV_HEADS * head_dim, 5, magnitude)
        bad = np.full((shape.pages * page_tokens, KV_HEADS * head_dim), np.nan, np.float32)
        for layer in range(LAYERS):
            self.store(bad, bad, 0, layer, list(range(shape.pages)))
        self.store(self.keys, self.values, 0)

    def store(
        self, keys: np.ndarray, values: np.ndarray, start: int, layer: int = 1, pages: list[int] | None = None
    ) -> None:
        both, width = self.card.stored(np.concatenate([keys, values], axis=1)), keys.shape[1]
        where = self.pages if pages is None else pages
        store(self.card, self.cache, layer, where, start, both[:, :width], both[:, width:])

    def sight(self, window: int) -> Sight:
        return Sight(1, None, self.head_dim**-0.5, window)

    def rows(self, queries: np.ndarray, positions: list[int], window: int = 0) -> np.ndarray:
        out, places = self.card.empty(*queries.shape), [(self.pages, position) for position in positions]
        placed = self.card.attention.place(self.cache, places)
        self.card.attention.rows(self.card.stored(queries), self.cache, self.sight(window), placed, out)
        return self.card.numbers(out)

    def spoil(self, start: int) -> None:
        """Put what is infinite behind these positions, by nobody's kernel."""
        layout = len(self.pages) * 2 + 1, LAYERS, 2, KV_HEADS, self.cache.page_tokens, self.head_dim
        bits = np.empty(layout, self.cache.stored.bits)
        self.card._device.download(self.cache.pointer, bits)
        for position in range(start, len(self.keys)):
            page, inside = self.pages[position // self.cache.page_tokens], position % self.cache.page_tokens
            bits[page, 1, :, :, inside] = 0x7F80 if self.numbers == "bf16" else 0x7C00
        self.card._device.store(self.cache.pointer, bits)

    def chunk(self, queries: np.ndarray, first: int, window: int = 0) -> np.ndarray:
        out = self.card.empty(*queries.shape)
        self.card.attention.chunk(self.card.stored(queries), self.cache, self.sight(window), self.pages, first, out)
        return self.card.numbers(out)

    def exact(self, queries: np.ndarray, positions: list[int], window: int = 0) -> np.ndarray:
        return self.attended(queries.astype(np.float64) * self.head_dim**-0.5, positions, window)[0]

    def in_tensor_cores(self, queries: np.ndarray, first: int, window: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """And by how much it may be wrong: weights and their sum are rounded, and float16's end at 2^-24."""
        scale = np.float32(self.head_dim**-0.5)
        positions = list(range(first, first + len(queries)))
        asked = rounded(queries * scale, self.numbers).astype(np.float64)
        exact, size = self.attended(asked, positions, window)
        least, seen = 2.0**-25 if self.numbers == "f16" else 0.0, first + len(queries)
        digits = 11 if self.numbers == "f16" else 8
        return exact, size * (2 * 1.01 * 2.0**-digits + 2e-5) + least * seen * np.abs(self.values).max() + 1e-44

    def attended(self, asked: np.ndarray, positions: list[int], window: int) -> tuple[np.ndarray, np.ndarray]:
        """In float64, written out plainly; of keys and values as they are kept.  And the sizes of what was added."""
        asked = asked.reshape(len(asked), HEADS, self.head_dim)
        keys, values = (
            rounded(array, self.numbers).astype(np.float64).reshape(-1, KV_HEADS, self.head_dim)
            for array in (self.keys, self.values)
        )
        out, sizes = np.empty(asked.shape), np.empty(asked.shape)
        for row, position in enumerate(positions):
            for head in range(HEADS):
                begin = max(0, position + 1 - window) if window else 0
                seen = slice(begin, position + 1), head // (HEADS // KV_HEADS)
                scores = keys[seen] @ asked[row, head]
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values[seen]
                sizes[row, head] = weights / weights.sum() @ np.abs(values[seen])
        return out.reshape(len(asked), -1), sizes.reshape(len(asked), -1)


@pytest.mark.parametrize(
    ("head_dim", "page_tokens", "numbers"),
    [*((dim, tokens, "f32") for dim in (16, 100, 256) for tokens in (1, 64)), (100, 1, "f16"), (64, 64, "bf16")],
)
def test_attention_of_lone_rows_is_exact_up_to_rounding(
    card: GpuOps, head_dim: int, page_tokens: int, numbers: str
) -> None:
    """At the edges of pages and of spans."""
    sequence = Sequence(card, 600, head_dim=head_dim, page_tokens=page_tokens, numbers=numbers)
    positions = [0, 1, 63, 64, 255, 256, 257, 511, 512, 599]
    queries = rows(len(positions), HEADS * head_dim, 6)
    exact = sequence.exact(queries, positions)
    np.testing.assert_allclose(sequence.rows(queries, positions), exact, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("head_dim", [16, 100, 136, 256])
@pytest.mark.parametrize("page_tokens", [1, 16])
def test_attention_of_a_chunk_is_exact_up_to_rounding(card: GpuOps, head_dim: int, page_tokens: int) -> None:
    sequence = Sequence(card, 83, head_dim=head_dim, page_tokens=page_tokens)
    queries = rows(40, HEADS * head_dim, 6)
    exact = sequence.exact(queries, list(range(43, 83)))
    np.testing.assert_allclose(sequence.chunk(queries, 43), exact, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("head_dim", "page_tokens", "numbers"),
    [
        *((64, 16, "f16"), (80, 1, "bf16"), (128, 16, "bf16"), (256, 64, "f16")),
        *((15, 16, "bf16"), (100, 1, "f16"), (136, 16, "f16")),
    ],
)
def test_attention_in_tensor_cores_is_exact_up_to_the_rounding_of_what_is_multiplied(
    card: GpuOps, head_dim: int, page_tokens: int, numbers: str
) -> None:
    """Of heads that are whole tiles, and of others."""
    sequence = Sequence(card, 83, head_dim=head_dim, page_tokens=page_tokens, numbers=numbers)
    queries = rows(40, HEADS * head_dim, 6)
    exact, bound = sequence.in_tensor_cores(queries, 43)
    assert (np.abs(sequence.chunk(queries, 43) - exact) < bound).all()


@pytest.mark.parametrize(
    ("numbers", "magnitude"), [("f16", "small"), ("f16", "denormal"), *(("bf16", each) for each in MAGNITUDES)]
)
def test_values_of_every_size_are_weighed_in_tensor_cores(card: GpuOps, numbers: str, magnitude: str) -> None:
    sequence = Sequence(card, 83, head_dim=16, page_tokens=16, numbers=numbers, magnitude=magnitude)
    queries = rows(40, HEADS * 16, 6)
    exact, bound = sequence.in_tensor_cores(queries, 43)
    assert (np.abs(sequence.chunk(queries, 43) - exact) < bound).all()


@pytest.mark.parametrize("numbers", SIXTEEN_BITS)
def test_values_that_are_equal_are_what_comes_of_them(card: GpuOps, numbers: str) -> None:
    """However coarse the weights are: they are divided by their own sum."""
    sequence = Sequence(card, 83, head_dim=64, page_tokens=16, numbers=numbers)
    sequence.store(sequence.keys, np.full_like(sequence.values, 1.25), 0)
    got = sequence.chunk(rows(40, HEADS * 64, 6), 43)
    np.testing.assert_allclose(got, 1.25, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 20, 300])
def test_attention_of_a_window_is_exact_up_to_rounding(card: GpuOps, window: int) -> None:
    sequence = Sequence(card, 600, head_dim=16, page_tokens=16)
    positions = [0, 19, 20, 255, 256, 275, 299, 300, 511, 599]
    queries = rows(len(positions), HEADS * 16, 6)
    exact = sequence.exact(queries, positions, window)
    np.testing.assert_allclose(sequence.rows(queries, positions, window), exact, rtol=2e-4, atol=2e-5)
    queries = rows(70, HEADS * 16, 6)
    exact = sequence.exact(queries, list(range(500, 570)), window)
    np.testing.assert_allclose(sequence.chunk(queries, 500, window), exact, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("window", "numbers"), [(1, "f16"), (20, "bf16"), (300, "f16"), (600, "bf16")])
def test_attention_of_a_window_in_tensor_cores_is_exact_up_to_rounding(card: GpuOps, window: int, numbers: str) -> None:
    sequence = Sequence(card, 600, head_dim=16, page_tokens=16, numbers=numbers)
    queries = rows(70, HEADS * 16, 6)
    exact, bound = sequence.in_tensor_cores(queries, 500, window)
    assert (np.abs(sequence.chunk(queries, 500, window) - exact) < bound).all()


@pytest.mark.parametrize("numbers", NUMBERS)
def test_scores_that_are_far_apart_overflow_nowhere(card: GpuOps, numbers: str) -> None:
    sequence = Sequence(card, 300, head_dim=16, page_tokens=64, scale=1e4, numbers=numbers)
    queries = rounded(rows(20, HEADS * 16, 6) * 100, numbers)
    exact = sequence.exact(queries, list(range(280, 300)))
    np.testing.assert_allclose(sequence.rows(queries, list(range(280, 300))), exact, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sequence.chunk(queries, 280), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_row_does_not_meet_what_a_later_one_stored(card: GpuOps, numbers: str) -> None:
    """Not even multiplied by zero: what is infinite there would make it no number."""
    sequence = Sequence(card, 48, head_dim=16, page_tokens=16, numbers=numbers)
    queries = rows(48, HEADS * 16, 6)
    before = sequence.chunk(queries, 0)
    late = np.full((8, KV_HEADS * 16), np.inf, np.float32)
    sequence.store(late, late, 40)
    after = sequence.chunk(queries, 0)
    assert after[:40].tobytes() == before[:40].tobytes()
    assert not np.isfinite(after[40:]).any()


@pytest.mark.parametrize(("numbers", "most"), [("f16", 65504.0), ("bf16", 3.3895e38)])
@pytest.mark.parametrize("which", ["keys", "values"])
def test_what_sixteen_bits_cannot_hold_makes_those_who_see_it_no_numbers_and_nobody_else(
    card: GpuOps, numbers: str, most: float, which: str
) -> None:
    """B33: whatever its sign, and whatever it is multiplied with; the largest that they can hold is a number."""
    sequence = Sequence(card, 80, head_dim=16, page_tokens=16, numbers=numbers)
    queries, positions = rows(80, HEADS * 16, 6), list(range(80))

    def attended(one: float) -> tuple[np.ndarray, np.ndarray]:
        keys, values = sequence.keys[20:21].copy(), sequence.values[20:21].copy()
        (keys if which == "keys" else values)[0, 3] = one
        sequence.store(keys, values, 20)
        return sequence.chunk(queries, 0, 30), sequence.rows(queries, positions, 30)

    usual = attended(1.0)
    for one in (most, -most):
        assert all(np.isfinite(got).all() for got in attended(one))
    for one in (most * 1.003, -most * 1.003, np.inf, np.nan):
        for got, wanted in zip(attended(one), usual, strict=True):
            assert np.isnan(got[20:50].reshape(-1, KV_HEADS, HEADS // KV_HEADS, 16)[:, 0]).all(), "of that head"
            unseen = np.delete(got, np.s_[20:50], 0)
            assert unseen.tobytes() == np.delete(wanted, np.s_[20:50], 0).tobytes()


def test_heads_that_are_too_wide_are_refused(card: GpuOps) -> None:
    with pytest.raises(ModelError, match="264 elements"):
        card.cache(CacheShape(1, 1, 16, 1, 264))


def test_rows_that_need_more_memory_than_there_is_are_computed_in_goes(card: GpuOps) -> None:
    """And one that needs more by itself is refused."""
    at = 256 * (PARTS_BYTES // (4 * 32 * 128) // 3) - 1
    places = [([0], 5), ([0], at), ([0], 9), ([0], 0)]
    goes = card.attention.goes
    assert [*goes(places, 32, 126, 64)] == [slice(0, 3), slice(3, 4)]
    assert [*goes(3 * places, 1, 126, 1)] == [slice(0, 6), slice(6, 12)], "six tables of such a length fit"
    with pytest.raises(ValueError, match="needs"):
        goes([([], 100_000_000)], 32, 126, 64)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_what_is_stored_is_what_the_state_is_made_of(card: GpuOps, numbers: str) -> None:
    """B07: the bytes of a fingerprint: page by page, and no position beyond the length."""
    sequence = Sequence(card, 40, head_dim=16, page_tokens=16, numbers=numbers)
    parts = [bytes(part) for part in card.page_bytes(sequence.cache, sequence.pages, 35)]
    size = 4 if numbers == "f32" else 2
    assert [len(part) for part in parts] == [LAYERS * 2 * KV_HEADS * count * 16 * size for count in (16, 16, 3)]
    last = stored_as(parts[2], numbers).reshape(LAYERS, 2, KV_HEADS, 3, 16)
    for stored, wanted in zip(last[1], (sequence.keys, sequence.values), strict=True):
        assert stored.swapaxes(0, 1).reshape(3, -1).tolist() == rounded(wanted[32:35], numbers).tolist()


def stored_as(part: bytes, numbers: str) -> np.ndarray:
    if numbers == "bf16":
        return (np.frombuffer(part, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(part, np.float32 if numbers == "f32" else np.float16).astype(np.float32)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_page_that_is_moved_to_the_arena_and_back_elsewhere_is_the_same(card: GpuOps, numbers: str) -> None:
    """Its place is used by others at once, though nobody waited for the copies."""
    cache = PagedCache(card._device, CacheShape(1, 3, 4, 1, 8, slots=2), STORED[numbers])
    first, other = rows(4, 16, 1), rows(4, 16, 2)
    for there, slot in ((first, 1), (other, 0)):
        both = card.stored(there)
        store(card, cache, 0, [2], 0, both[:, :8], both[:, 8:])
        card.copy_out(cache, 2, slot)
    wanted = bytes(next(iter(card.page_bytes(cache, [3 + 1], 4))))
    stored = np.concatenate([first[:, :8], first[:, 8:]])
    assert stored_as(wanted, numbers).reshape(8, 8).tolist() == rounded(stored, numbers).tolist()
    card.copy_in(cache, 1, 0)
    card.copy_out(cache, 2, 1)
    assert bytes(next(iter(card.page_bytes(cache, [0], 4)))) == wanted
    assert bytes(next(iter(card.page_bytes(cache, [3 + 1], 4)))) != wanted


def test_pages_move_beside_what_is_computed_and_before_what_uses_them(card: GpuOps) -> None:
    """The emulated streams do nothing before somebody waits: what is seen of the slots tells which one did."""
    cache = card.cache(CacheShape(1, 4, 4, 1, 8, slots=2))
    both, out = card.stored(rows(4, 16)), card.empty(1, 8)
    keys, values = both[:, :8], both[:, 8:]

    def attended(page: int) -> list[float]:
        sight, placed = Sight(0, None, 1.0), card.attention.place(cache, [([page], 3)])
        card.attention.rows(values[:1], cache, sight, placed, out)
        return card.numbers(out).tolist()

    cache._slots[...] = 7
    store(card, cache, 0, [1], 0, keys, values)
    card.copy_out(cache, 1, 0)
    store(card, cache, 0, [2], 0, values, keys)
    other = attended(2)
    assert (cache._slots == 7).all(), "nothing is held up by it"
    store(card, cache, 0, [1], 0, values, values)
    card._device.synchronize()
    assert cache._slots[0, 0, :, 0].tolist() == card.numbers(both).reshape(4, 2, 8).swapaxes(0, 1).tolist()
    card.copy_in(cache, 0, 2)
    store(card, cache, 0, [3], 0, keys, values)
    assert attended(2) == attended(3) != other


# -- same rows, same bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 1, 20, 40])
def test_a_row_of_a_chunk_has_the_same_bits_wherever_the_chunk_is_cut(card: GpuOps, window: int) -> None:
    sequence = Sequence(card, 70, head_dim=16, page_tokens=16)
    queries = rows(70, HEADS * 16, 6)
    whole = sequence.chunk(queries, 0, window)
    for cuts in ([0, 70], [0, 1, 2, 70], [0, 16, 31, 33, 64, 70], [0, 69, 70]):
        parts = [sequence.chunk(queries[start:end], start, window) for start, end in pairwise(cuts)]
        assert np.concatenate(parts).tobytes() == whole.tobytes(), cuts


@pytest.mark.parametrize(("window", "numbers"), [(0, "f16"), (20, "bf16")])
def test_a_row_in_tensor_cores_has_the_same_bits_at_every_place_of_a_tile(
    card: GpuOps, window: int, numbers: str
) -> None:
    """At every count of rows, wherever the chunk is cut, and whatever lies behind it."""
    sequence = Sequence(card, 52, head_dim=24, page_tokens=16, numbers=numbers)
    queries = rows(52, HEADS * 24, 6)
    whole = sequence.chunk(queries, 0, window)
    assert np.isfinite(whole).all()
    for cut in range(1, 52):
        assert sequence.chunk(queries[cut:], cut, window).tobytes() == whole[cut:].tobytes(), cut
    for cut in reversed(range(1, 52)):
        sequence.spoil(cut)
        assert sequence.chunk(queries[:cut], 0, window).tobytes() == whole[:cut].tobytes(), cut
        assert sequence.chunk(queries, 0, window)[:cut].tobytes() == whole[:cut].tobytes(), cut


@pytest.mark.parametrize(("window", "numbers"), [(0, "f32"), (100, "f32"), (300, "f32"), (100, "f16")])
def test_a_lone_row_has_the_same_bits_beside_any_others(card: GpuOps, window: int, numbers: str) -> None:
    sequence = Sequence(card, 600, head_dim=16, page_tokens=64, numbers=numbers)
    queries, positions = rows(8, HEADS * 16, 6), [3, 599, 255, 256, 0, 300, 63, 511]
    together = sequence.rows(queries, positions, window)
    alone = [sequence.rows(queries[at : at + 1], [position], window) for at, position in enumerate(positions)]
    assert np.concatenate(alone).tobytes() == together.tobytes()


# -- steps that are replayed --------------------------------------------------------------------------------------


class Attending:
    """Rows of one sequence that are turned, stored and attend: told at once, and as a step that is replayed."""

    def __init__(self, card: GpuOps, rows_together: int) -> None:
        self.card, self.count = card, rows_together
        self.sequence = Sequence(card, 1100, head_dim=16, page_tokens=16)
        self.sight = Sight(1, card.rotation(1100, 16, 1e4), 0.25)
        self.queries, self.out = card.empty(rows_together, HEADS * 16), card.empty(rows_together, HEADS * 16)
        self.both = card.empty(rows_together, 2 * KV_HEADS * 16)
        self.step = self.recorded(card.recorder())

    def recorded(self, step: RecordedStep) -> RecordedStep:
        step.attend(*self.inputs(), self.out)
        return step

    def inputs(self) -> tuple[object, ...]:
        keys, values = self.both[:, : KV_HEADS * 16], self.both[:, KV_HEADS * 16 :]
        return self.queries, keys, values, self.sight, self.sequence.cache

    def bits(self, run: Callable[[list[tuple[list[int], int]]], None], positions: list[int]) -> bytes:
        """What is attended, and all that is stored."""
        card, length = self.card, len(self.sequence.keys)
        self.sequence.store(self.sequence.keys, self.sequence.values, 0)
        for array in (self.queries, self.both):
            card._device.store(array.pointer, rows(self.count, array.columns, sum(positions)))
        run([(self.sequence.pages, position) for position in positions])
        stored = b"".join(map(bytes, card.page_bytes(self.sequence.cache, self.sequence.pages, length)))
        return card.numbers(self.out).tobytes() + stored

    def check(self, *positions: int) -> None:
        there = self.bits(lambda places: self.card.attend_rows(*self.inputs(), places, self.out), list(positions))
        assert self.bits(self.step.run, list(positions)) == there, positions


def test_a_replayed_step_has_the_bits_of_its_launches_wherever_its_rows_are(card: GpuOps) -> None:
    """At the edges of spans, each of them told, captured and replayed; more of them than graphs are kept."""
    rows_of = Attending(card, 3)
    for positions in ((0, 255, 17), (256, 3, 511), (1023, 512, 77), (1024, 1099, 255)):
        for turn in range(4):
            rows_of.check(*(max(0, position - turn) for position in positions))
    assert len(rows_of.step._graphs) == GRAPHS
    rows_of.check(0, 254, 16)


def test_a_step_that_there_is_no_memory_for_at_once_is_told_in_goes(card: GpuOps) -> None:
    rows_of = Attending(card, 3)
    little = Attention(card._device, card._staging, parts_bytes=2 * 4 * HEADS * 4 * 18)
    shared = Replaying.on(card._device, card._staging, card.rows, LoneRows(little))
    rows_of.step = rows_of.recorded(RecordedStep(shared))
    rows_of.check(1000, 2, 600)
    assert not rows_of.step._graphs


def test_a_recorder_takes_down_whatever_kernels_do(card: GpuOps) -> None:
    operations = {name for name in vars(Kernels) if not name.startswith("_")}
    assert "add_norm" in operations
    assert operations < set(vars(type(card.recorder())))
