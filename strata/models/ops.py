"""What a device must be able to compute, so that an architecture can be written once.

An architecture strings these together and never touches a number; a device implements them and knows no architecture.
Arrays, matrices and caches are the device's own: opaque here but for being cut by rows (`x[a:b]`) and by columns
(`x[:, a:b]`), which gives a view.

All floating point is float32, but for what a device keeps in pages.  Every operation comes in two forms, because rows
that are read together and rows that come alone can't use the same kernel and still have bits of their own: `tiles`
works on whole tiles of `tile` rows, `rows` on each row by itself.  In both a row's result depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.draws import Draw
from strata.models.config import RawTensor

Array: TypeAlias = Any
"""Rows of float32 on the device."""

Activation: TypeAlias = Literal["silu", "gelu"]
"""What opens a gate: x / (1 + e^-x), or GELU by its approximation with a tangent (https://arxiv.org/abs/1606.08415)."""

Matrix: TypeAlias = Any
"""Weights on the device, (rows, columns): maps `columns` inputs to `rows` outputs."""

Cache: TypeAlias = Any
"""Keys and values of all pages and layers."""


@frozen
class CacheShape:
    """The sizes of a paged cache of keys and values; heads are those of the keys.

    `slots`: pages that the host arena beside it holds.
    """

    layers: int
    pages: int
    page_tokens: int
    kv_heads: int
    head_dim: int
    slots: int = 0

    @property
    def of_page(self) -> tuple[int, int, int, int, int]:
        """Numbers of a page: by layer, keys and values, head, position and element."""
        return self.layers, 2, self.kv_heads, self.page_tokens, self.head_dim


@frozen
class Sight:
    """How the rows of one layer look at keys."""

    layer: int
    angles: Array
    """Of every position, as `rotation` made them."""
    scale: float
    """What products of queries and keys are multiplied by."""
    window: int = 0
    """So many keys a row sees, its own the last of them; 0: all that there are."""


class Kernels(Protocol):
    """What is done to each row by itself."""

    def norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out = x / sqrt(mean(x^2) + eps) * weight, over each row (https://arxiv.org/abs/1910.07467)."""
        ...

    def add_norm(self, x: Array, weight: Array, eps: float, out: Array) -> None:
        """out += what `norm` makes of x, which may be overwritten."""
        ...

    def norm_heads(self, x: Array, weight: Array, eps: float) -> None:
        """`norm` of each head of each row, in place; a head is as long as the weight."""
        ...

    def add(self, x: Array, vector: Array) -> None:
        """x += vector, each row."""
        ...

    def linear(self, x: Array, matrix: Matrix, out: Array) -> None:
        """out = x @ matrix.T"""
        ...

    def add_linear(self, x: Array, matrix: Matrix, out: Array) -> None:
        """out += x @ matrix.T"""
        ...

    def gated(self, x: Array, matrix: Matrix, out: Array) -> None:
        """out = activation(x @ gate.T) * (x @ up.T); the matrix was made by `gated_matrix`."""
        ...


class Recorder(Kernels, Protocol):
    """Takes operations on rows down, instead of doing them; `run` does all, as often as wanted.

    They are done in order, with the arrays that were given and what those hold then.
    """

    def attend(self, queries: Array, keys: Array, values: Array, sight: Sight, cache: Cache, out: Array) -> None:
        """`Ops.attend_rows` at the places that `run` is given; the cache is always the same."""
        ...

    def run(self, places: Sequence[tuple[Sequence[int], int]]) -> None: ...


class Roof(Protocol):
    """What a device does at most, for whoever holds its operations against that.  What it needs stays taken."""

    def copy(self) -> int:
        """Copy much memory of the device once; how many bytes are read and written by that."""
        ...

    def multiply(self, together: bool) -> tuple[str, int]:
        """Multiply large matrices once, in such numbers as rows that are read together are multiplied in, or that come
        alone; in which and by what, for people, and how many additions and multiplications that is.

        Raises DeviceMissing where nothing is there of which it can be said that it does so as fast as the device can.
        """
        ...


class Ops(Protocol):
    """One device."""

    @property
    def device(self) -> str: ...

    @property
    def tile(self) -> int:
        """Rows that `tiles` works on at a time.  Tiles lie on the grid of absolute positions."""
        ...

    @property
    def tiles(self) -> Kernels: ...

    @property
    def rows(self) -> Kernels: ...

    def slice_tiles(self, position: int) -> int:
        """How many tiles from this position on are best computed together, and never more than from 0 on."""
        ...

    def matrix(self, parts: Sequence[RawTensor]) -> Matrix:
        """Load matrices of like width, one below the other."""
        ...

    def gated_matrix(self, gate: RawTensor, up: RawTensor, activation: Activation) -> Matrix: ...

    def vector(self, tensor: RawTensor) -> Array: ...

    def matrix_bytes(self, tensor: RawTensor) -> int:
        """Memory that it will take on the device."""
        ...

    def rotation_bytes(self, context: int, turned: int) -> int:
        """Memory that such a `rotation` takes."""
        ...

    def available_bytes(self) -> int:
        """Memory that is free on the device now."""
        ...

    def vectors(self, parts: Sequence[RawTensor]) -> Array:
        """Load vectors, one after the other."""
        ...

    def rotation(
        self, context: int, turned: int, theta: float, factors: Sequence[float] = (), scale: float = 1.0
    ) -> Array:
        """The angles of every position below `context`; of each head the first `turned` elements are turned.

        `factors`: what each pair's speed is divided by, turned / 2 of them; none: by nothing.  `scale`: what is turned
        is also multiplied by it.
        """
        ...

    def empty(self, rows: int, width: int) -> Array: ...

    def bytes_of_page(self, shape: CacheShape) -> int:
        """Memory that each page of such a cache takes, and each slot."""
        ...

    def cache(self, shape: CacheShape) -> Cache:
        """Memory for all pages, filled with zeros, and for the arena: all that it will ever take."""
        ...

    def context_bytes(self, context: int, heads: int, head_dim: int) -> int:
        """Memory of the device that `expect_context` takes."""
        ...

    def expect_context(self, context: int, heads: int, cache: Cache) -> None:
        """Called once, before anything attends: take what a row of so many heads needs at any position below `context`.

        Raises ConfigError where a sequence of that length has more pages than the device can be told of.
        """
        ...

    def copy_out(self, cache: Cache, page: int, slot: int) -> None:
        """Copy a whole page to a slot of the arena.  Done when it returns."""
        ...

    def copy_in(self, cache: Cache, slot: int, page: int) -> None:
        """Copy a slot of the arena to a page.  Done when it returns."""
        ...

    def embed(self, matrix: Matrix, tokens: NDArray[np.int64], scale: float, out: Array) -> None:
        """out = the matrix's rows that `tokens` name, times `scale`."""
        ...

    def attend_tiles(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        sight: Sight,
        cache: Cache,
        pages: Sequence[int],
        first: int,
        real: range,
        out: Array,
    ) -> None:
        """Turn whole tiles of queries and keys by their positions, store keys and values, and attend causally.

        Rows are at positions first, first + 1, ...; first is on the grid.  `real` are the positions that are more than
        padding: only theirs are stored, nothing is stored from real.stop on, and results from there mean nothing, but
        are finite.  Pairs (2i, 2i + 1) of each head are turned by their position's i-th angle
        (https://arxiv.org/abs/2104.09864), in place or not: what queries and keys hold afterwards means nothing.
        queries and out: (rows, heads * head_dim), keys and values: (rows, kv_heads * head_dim).  A window hides keys:
        they stay stored, in pages that stay the sequence's.
        """
        ...

    def attend_rows(
        self,
        queries: Array,
        keys: Array,
        values: Array,
        sight: Sight,
        cache: Cache,
        places: Sequence[tuple[Sequence[int], int]],
        out: Array,
    ) -> None:
        """The same for rows that come alone, each with its sequence's pages and its position.

        All keys and values are stored before any row attends, so that one may attend to others of the same call.
        """
        ...

    def recorder(self) -> Recorder | None:
        """For a decode step's operations, which are the same each time; None: there is nothing to be gained by it."""
        ...

    def recorder_bytes(self, operations: int) -> int:
        """Memory of the device that one takes when it was told so many, `add_norm` counted twice."""
        ...

    def numbers(self, array: Array) -> NDArray[np.float32]:
        """A copy on the host."""
        ...

    def draw(self, array: Array, draws: Sequence[Draw | None], positions: Sequence[int]) -> Sequence[int | None]:
        """The column that is drawn of each row of logits, as the token of its position.

        None where nothing was to be drawn, where one of the row's numbers is not finite, and where the host, which has
        `numbers`, can do it as well.
        """
        ...

    def page_bytes(self, cache: Cache, pages: Sequence[int], length: int) -> Iterable[memoryview]:
        """What is stored for the positions below `length`, in order of pages.

        Here alone a number behind the last page is a slot of the arena.
        """
        ...

    def roof(self) -> Roof: ...

    def close(self) -> None:
        """End the device's threads; a second close does nothing."""
        ...
