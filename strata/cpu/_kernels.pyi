"""The compiled kernels (native/*_python.c).  Arrays are float32 and rows in C order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def sets() -> list[str]:
    """The instruction sets that can run here, the best one last."""

def use(name: str, /) -> None:
    """Compute with this set from now on.  Raises ValueError where it can't run here."""

def used() -> str: ...

class Pool:
    """Threads that compute, the caller among them; one caller at a time.  Closed when forgotten."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def close(self) -> None: ...

class Weights:
    """Matrices of one width as a file holds them: (kind, rows, columns, bytes) each.  Holds the bytes, copies nothing.

    `gated`: two of one shape, a gate and what it lets through; `gelu`: opened by GELU and not by SiLU.  Raises
    ValueError for an unknown kind and wrong sizes.
    """

    def __init__(
        self, parts: tuple[tuple[str, int, int, NDArray[np.uint8]], ...], gated: bool, gelu: bool = False
    ) -> None: ...

def product(pool: Pool, weights: Weights, x: NDArray[np.float32], out: NDArray[np.float32], add: bool, /) -> None:
    """out (+)= x @ weights.T; gated: out = activation(x @ gate.T) * (x @ up.T)."""

def norm(x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32], /) -> None:
    """Of whole rows, or of each head where the weight is as long as a head; `out` may be `x`."""

def expand(weights: Weights, rows: NDArray[np.int64], out: NDArray[np.float32], /) -> None:
    """Rows of all parts, one below the other, as numbers.  Raises IndexError for one that isn't there."""

def attend(
    pool: Pool,
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    table: NDArray[np.complex64],
    cache: NDArray[np.float32],
    layer: int,
    window: int,
    scale: float,
    places: list[tuple[Sequence[int], int]],
    out: NDArray[np.float32],
    /,
) -> None:
    """Turn queries and keys in place, store keys and values, attend: each row at its place (pages, position).

    A row sees `window` keys, its own the last of them; 0: all.
    """

def draw(
    pool: Pool, logits: NDArray[np.float32], draws: list[tuple[float, int, int, int, int, int] | None], /
) -> list[int | None]:
    """The token of each row, by (scale, keep, nucleus, least, seed, position).

    None where there is no draw, or a number that is not finite.  Raises ValueError for a draw that leaves nothing.
    """

class Program:
    """Operations on rows, taken down once, with their arrays, and done in one call each time.

    All that attend have one cache, and find their rows at the places that `run` is given.
    """

    def product(self, weights: Weights, x: NDArray[np.float32], out: NDArray[np.float32], add: bool, /) -> None: ...
    def norm(
        self, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32], /
    ) -> None: ...
    def add(self, x: NDArray[np.float32], vector: NDArray[np.float32], /) -> None: ...
    def add_rows(self, x: NDArray[np.float32], more: NDArray[np.float32], /) -> None: ...
    def attend(
        self,
        queries: NDArray[np.float32],
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        table: NDArray[np.complex64],
        cache: NDArray[np.float32],
        layer: int,
        window: int,
        scale: float,
        out: NDArray[np.float32],
        /,
    ) -> None: ...
    def run(self, pool: Pool, places: list[tuple[Sequence[int], int]], /) -> None: ...
    @staticmethod
    def bytes_of(operations: int, /) -> int:
        """Memory that a program of so many takes."""

def product_tiles(pool: Pool, weights: Weights, x: NDArray[np.float32], out: NDArray[np.float32], add: bool, /) -> None:
    """The same as `product` for whole tiles of rows."""

def norm_tiles(
    pool: Pool, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32], /
) -> None:
    """Of whole rows, or of each head where the weight is as long as a head; `out` may be `x`."""

def attend_tiles(
    pool: Pool,
    queries: NDArray[np.float32],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    table: NDArray[np.complex64],
    cache: NDArray[np.float32],
    layer: int,
    window: int,
    scale: float,
    pages: Sequence[int],
    first: int,
    start: int,
    end: int,
    out: NDArray[np.float32],
    /,
) -> None:
    """Turn whole tiles at positions first, first + 1, ... in place, store start .. end - 1 of them, attend."""
