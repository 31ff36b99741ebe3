"""Causal attention over paged keys and values, and their storing.  Knows positions and pages; no sequence.

Which keys are summed together is in the kernels: `cuda/chunk.cu`, `cuda/decode.cu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from strata.errors import ModelError
from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.cache import PagedCache
from strata.gpu.device import Device
from strata.gpu.staging import Staging

QUERIES: Final = 16
"""Rows of a block of `attend_chunk`."""

SPAN: Final = 256
"""Keys of a block of `attend_spans`."""

WIDEST_HEAD: Final = 256
"""Elements: of wider ones `attend_chunk` would keep more sums than a thread has registers."""

PARTS_BYTES: Final = 32 << 20
"""Memory for what `attend_spans` hands to `join_spans`; rows that need more are computed in several goes."""

Place = tuple[Sequence[int], int]
"""A row's pages and its position."""


class Sight(Protocol):
    """How the rows of one layer look at keys; window 0: at all that there are."""

    @property
    def layer(self) -> int: ...
    @property
    def angles(self) -> Any: ...
    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int: ...


class Attention:
    def __init__(self, device: Device, staging: Staging) -> None:
        self._device = device
        self._staging = staging
        self._parts = device.alloc(PARTS_BYTES)

    def store(
        self, cache: PagedCache, layer: int, pages: Sequence[int], start: int, keys: DeviceArray, values: DeviceArray
    ) -> None:
        """Store rows of keys and values, side by side in the same rows, at positions start, start + 1, ..."""
        where = self._staging.put(tuple(pages))
        shape = layer, cache.layers, cache.kv_heads, cache.page_tokens, cache.head_dim
        kernel = self._device.load(table.STORE)
        self._device.launch(
            kernel, (len(keys), 1), keys.pointer, values.pointer, keys.stride, cache.pointer, where, start, *shape
        )

    def chunk(
        self, queries: DeviceArray, cache: PagedCache, sight: Sight, pages: Sequence[int], first: int, out: DeviceArray
    ) -> None:
        """Rows of one sequence at positions first, first + 1, ..."""
        where = self._staging.put(tuple(pages))
        kernel = self._device.load(table.ATTEND_CHUNK, HEAD_DIM=str(cache.head_dim))
        grid = -(-len(queries) // QUERIES), queries.columns // cache.head_dim
        shape = sight.layer, cache.layers, cache.kv_heads, cache.page_tokens, sight.scale, sight.window
        rows = queries.pointer, queries.stride, cache.pointer, where, out.pointer, out.stride, len(queries), first
        self._device.launch(kernel, grid, *rows, *shape)

    def rows(
        self, queries: DeviceArray, cache: PagedCache, sight: Sight, places: Sequence[Place], out: DeviceArray
    ) -> None:
        """Rows that come alone, each with its sequence's pages and its position."""
        heads = queries.columns // cache.head_dim
        for go in goes(places, heads, cache.head_dim):
            self._rows(queries[go], cache, sight, places[go], out[go])

    def _rows(
        self, queries: DeviceArray, cache: PagedCache, sight: Sight, places: Sequence[Place], out: DeviceArray
    ) -> None:
        used = [tuple(pages[: position // cache.page_tokens + 1]) for pages, position in places]
        width, spans = max(map(len, used)), _spans(places)
        where = self._staging.put(
            tuple(
                number
                for pages, (_, position) in zip(used, places, strict=True)
                for number in (position, *pages, *(0,) * (width - len(pages)))
            )
        )
        heads = queries.columns // cache.head_dim
        definitions = {"HEAD_DIM": str(cache.head_dim)}
        attend = self._device.load(table.ATTEND_SPANS, **definitions)
        join = self._device.load(table.JOIN_SPANS, **definitions)
        asked = queries.pointer, queries.stride, cache.pointer, where, width, self._parts
        shape = sight.layer, cache.layers, cache.kv_heads, cache.page_tokens, sight.scale, sight.window
        self._device.launch(attend, (spans, heads, len(queries)), *asked, *shape)
        joined = self._parts, where, width, spans, out.pointer, out.stride, sight.window
        self._device.launch(join, (heads, len(queries)), *joined)


def _spans(places: Sequence[Place]) -> int:
    return max(position for _, position in places) // SPAN + 1


def goes(places: Sequence[Place], heads: int, head_dim: int) -> Iterator[slice]:
    """As many rows at a time as there is memory for.  Raises ValueError where it isn't enough for one."""
    row = 4 * heads * _spans(places) * (head_dim + 2)
    together = max(1, PARTS_BYTES // row)
    if row > PARTS_BYTES:
        raise ValueError(f"a row at position {max(position for _, position in places)} needs {row} bytes")
    return (slice(at, min(at + together, len(places))) for at in range(0, len(places), together))


def check_width(head_dim: int) -> None:
    """Raises ModelError."""
    if head_dim > WIDEST_HEAD:
        raise ModelError(
            f"its heads have {head_dim} elements, and the GPU engine takes {WIDEST_HEAD} at most; use the processor"
        )
