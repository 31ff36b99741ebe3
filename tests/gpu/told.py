"""What can be told to any device by `strata.models.ops.Ops` alone, and two sequences that are read so.

Knows how far rows of one device may be from those of another for no reason but rounding; compares nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import field, frozen
from hard import Floats, rounded, rows

from strata.cpu.kernels import TILE
from strata.models.config import RawTensor
from strata.models.ops import Array, CacheShape, Ops, Sight

U = 2.0**-24
"""What a rounding to float32 loses of a number at most, in proportion."""

LAYERS, HEADS, KV_HEADS = 2, 4, 2


def weight(numbers: Floats) -> RawTensor:
    """As a file holds it: a matrix, or a vector."""
    return RawTensor("w", "F32", numbers.shape, np.ascontiguousarray(numbers, np.float32).reshape(-1).view(np.uint8))


def put(ops: Ops, numbers: Floats) -> Array:
    """A copy on the device, by the only way that all of them have: an embedding of every row."""
    out = ops.empty(*numbers.shape)
    ops.embed(ops.matrix([weight(numbers)]), np.arange(len(numbers)), 1.0, out)
    return out


@frozen
class Sequences:
    """Two of them, whose pages lie in no order; each token's queries, keys and values side by side in a row."""

    length: int
    head_dim: int = 16
    page_tokens: int = 16
    window: int = 0
    turned: int | None = None
    factors: Sequence[float] = ()
    scale: float = 1.0
    magnitude: str = "plain"
    """Of values."""
    far: float = 1.0
    """How large queries and keys are.  Where they are, one key's weight is 1 and all others' 0, by far."""
    number: str = "f32"
    """What all of them are rounded to."""
    tokens: list[Floats] = field(init=False)

    @tokens.default
    def _tokens(self) -> list[Floats]:
        together = [np.concatenate([self._look(10 + at), self._values(20 + at)], axis=1) for at in range(2)]
        return [rounded(one, self.number) for one in together]

    def _look(self, seed: int) -> Floats:
        return rows(self.length, self.keys.stop, seed) * np.float32(self.far)

    def _values(self, seed: int) -> Floats:
        return rows(self.length, KV_HEADS * self.head_dim, seed, self.magnitude)

    @property
    def keys(self) -> slice:
        return slice(HEADS * self.head_dim, (HEADS + KV_HEADS) * self.head_dim)

    @property
    def pages(self) -> int:
        """Of each of them."""
        return -(-self.length // self.page_tokens)

    def places(self, sequence: int) -> list[int]:
        mixed = np.random.default_rng(3).permutation(2 * self.pages + 1)
        return [int(page) for page in mixed[sequence * self.pages : (sequence + 1) * self.pages]]

    def apart(self, positions: Sequence[int]) -> Floats:
        """How far each row of one twin may be from another's.

        A score, which is a sum of as many products as a head has elements, is off by their roundings and those of
        turning.  A key's weight is off by e to that, the largest score's too, and so is the sum of weights that it is
        divided by.  Then come the roundings of two sums over all keys.
        """
        longest = [self._longest(np.s_[: self.keys.start]), self._longest(self.keys)]
        score = self.head_dim**-0.5 * self.scale**2 * longest[0] * longest[1] if self.far == 1 else 0.0
        of_weight = 4 * (self.head_dim + 16) * U * score
        seen = np.minimum(np.array(positions) + 1, self.window or self.length)
        return 2 * (of_weight + 2 * (seen + 16) * U)[:, None] * self.largest

    @property
    def largest(self) -> float:
        """Of values."""
        return max(float(np.abs(tokens[:, self.keys.stop :]).max()) for tokens in self.tokens)

    def _longest(self, columns: slice) -> float:
        return max(
            float(np.linalg.norm(one[:, columns].reshape(-1, self.head_dim), axis=1).max()) for one in self.tokens
        )


class Memory:
    """What one device keeps of them."""

    def __init__(self, ops: Ops, of: Sequences) -> None:
        self._ops, self._of = ops, of
        shape = CacheShape(LAYERS, 2 * of.pages + 1, of.page_tokens, KV_HEADS, of.head_dim)
        self._cache = ops.cache(shape)
        turned = of.head_dim if of.turned is None else of.turned
        self._angles = ops.rotation(of.length, turned, 1e4, of.factors, of.scale)

    def read(self, sequence: int, real: range, window: int | None = None) -> Floats:
        """In whole tiles, from the last position of the grid on."""
        first = real.start - real.start % TILE
        rows = np.zeros((-(-(real.stop - first) // TILE) * TILE, self._of.tokens[0].shape[1]), np.float32)
        there = self._of.tokens[sequence][first : first + len(rows)]
        rows[: len(there)] = there
        queries, keys, values, out = self._arrays(rows)
        sight, pages = self._sight(window), self._of.places(sequence)
        self._ops.attend_tiles(queries, keys, values, sight, self._cache, pages, first, real, out)
        whole = self._ops.numbers(out)
        assert np.isfinite(whole).all(), "of padding too"
        return whole[real.start - first : real.stop - first]

    def fill(self) -> None:
        """All of both, cheaply: each row looks at itself alone."""
        for sequence in range(2):
            self.read(sequence, range(self._of.length), window=1)

    def rows(self, asked: Sequence[tuple[int, int]]) -> Floats:
        """Of these sequences at these positions, each by itself."""
        rows = np.stack([self._of.tokens[sequence][position] for sequence, position in asked])
        places = [(self._of.places(sequence), position) for sequence, position in asked]
        queries, keys, values, out = self._arrays(rows)
        self._ops.attend_rows(queries, keys, values, self._sight(None), self._cache, places, out)
        return self._ops.numbers(out)

    def stored(self, sequence: int, length: int) -> Floats:
        parts = self._ops.page_bytes(self._cache, self._of.places(sequence), length)
        return np.concatenate([np.frombuffer(part, np.float32) for part in parts])

    def _arrays(self, rows: Floats) -> tuple[Array, Array, Array, Array]:
        together, keys = put(self._ops, rows), self._of.keys
        out = self._ops.empty(len(rows), keys.start)
        return together[:, : keys.start], together[:, keys], together[:, keys.stop :], out

    def _sight(self, window: int | None) -> Sight:
        return Sight(1, self._angles, self._of.head_dim**-0.5, self._of.window if window is None else window)
