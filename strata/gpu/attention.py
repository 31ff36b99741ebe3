"""Causal attention over paged keys and values: turning, storing, attending.  Knows positions and pages; no sequence.

Which keys are summed together is in the kernels: `cuda/chunk.cu` and, of keys that are kept in 16 bits,
`cuda/chunk_tensor.cu`; `cuda/decode.cu`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from attrs import frozen

from strata.errors import ConfigError, ModelError
from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.cache import STORED, PagedCache
from strata.gpu.device import Device
from strata.gpu.places import Place, Placed, Shape, pages_of, spans
from strata.gpu.staging import HALF, Staging

WIDEST_HEAD: Final = 256
"""Elements: of wider ones a chunk's kernels would keep more sums than a thread has registers."""

_HEADS: Final = 4
"""Of a row that a block turns and stores."""

PARTS_BYTES: Final = 32 << 20
"""Memory for what `attend_spans` hands to `join_spans`; rows that need more together are computed in several goes."""


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


@frozen
class Rows:
    """What is asked for and what is stored, a row of each for every place; keys and values in the same wider rows."""

    queries: DeviceArray
    keys: DeviceArray
    values: DeviceArray

    def __getitem__(self, some: slice) -> Rows:
        return Rows(self.queries[some], self.keys[some], self.values[some])


class Attention:
    def __init__(self, device: Device, staging: Staging, parts_bytes: int = PARTS_BYTES) -> None:
        self._device = device
        self._staging = staging
        self._parts = device.alloc(parts_bytes)
        self._parts_bytes = self._usual_bytes = parts_bytes

    def context_bytes(self, context: int, heads: int, head_dim: int) -> int:
        """What `expect_context` takes: as much as its last row needs, where that is more than there is."""
        row = _part_bytes(spans([((), context - 1)]), heads, head_dim)
        return row if row > self._usual_bytes else 0

    def expect_context(self, context: int, heads: int, cache: PagedCache) -> None:
        """Take it, and keep what there was.  Raises ConfigError where a row has too many pages for a table."""
        if Shape.of([((), context - 1)], cache.page_tokens).numbers > HALF:
            too_many = f"{cache.page_tokens} cut {context} tokens into more pages than the card can be told of"
            raise ConfigError("page_tokens", f"{too_many}: raise it, or lower context")
        if nbytes := self.context_bytes(context, heads, cache.head_dim):
            self._parts, self._parts_bytes = self._device.alloc(nbytes), nbytes

    def turn_and_store(self, rows: Rows, cache: PagedCache, sight: Sight, pages: Sequence[int], start: int) -> None:
        """Rows of one sequence, at positions start, start + 1, ...: queries turn in place, keys as they are stored."""
        cache.settle(pages)
        self._turn_and_store(table.TURN_AND_STORE, rows, cache, sight, self._staging.put(pages), start)

    def chunk(
        self, queries: DeviceArray, cache: PagedCache, sight: Sight, pages: Sequence[int], first: int, out: DeviceArray
    ) -> None:
        """Rows of one sequence at positions first, first + 1, ..."""
        cache.settle(pages)
        where = self._staging.put(pages)
        form, together = _of_chunks(cache)
        kernel = self._device.load(form, **_definitions(cache))
        grid = -(-len(queries) // together), queries.columns // cache.head_dim
        shape = sight.layer, cache.layers, cache.kv_heads, cache.page_tokens, sight.scale, sight.window
        rows = queries.pointer, queries.stride, cache.pointer, where, out.pointer, out.stride, len(queries), first
        self._device.launch(kernel, grid, *rows, *shape)

    def fits(self, shape: Shape, heads: int, head_dim: int) -> bool:
        """Whether there is memory for so many rows at once."""
        return shape.numbers <= HALF and shape.rows * _part_bytes(shape.spans, heads, head_dim) <= self._parts_bytes

    def goes(self, places: Sequence[Place], heads: int, head_dim: int, page_tokens: int) -> Iterator[slice]:
        """As many rows at a time as there is memory for.  Raises ValueError for one beyond the context."""
        row = _part_bytes(spans(places), heads, head_dim)
        if row > self._parts_bytes:
            raise ValueError(f"a row at position {max(position for _, position in places)} needs {row} bytes")
        width = Shape.of(places, page_tokens).width
        together = max(1, min(self._parts_bytes // row, HALF // (1 + width)))
        return (slice(at, min(at + together, len(places))) for at in range(0, len(places), together))

    def place(self, cache: PagedCache, places: Sequence[Place]) -> Placed:
        """Tell the card where rows stand; good for all that is launched before the next tables."""
        cache.settle(pages_of(places))
        shape = Shape.of(places, cache.page_tokens)
        return Placed(self._staging.put(shape.table(places, cache.page_tokens)), shape)

    def turn_and_store_rows(self, rows: Rows, cache: PagedCache, sight: Sight, placed: Placed) -> None:
        """The same for rows that come alone, each at its place."""
        self._turn_and_store(table.TURN_AND_STORE_ROWS, rows, cache, sight, placed.pointer, placed.shape.width)

    def _turn_and_store(self, kernel: table.Kernel, rows: Rows, cache: PagedCache, sight: Sight, *where: int) -> None:
        queries, keys, angles = rows.queries, rows.keys, sight.angles
        heads = queries.columns // cache.head_dim
        given = queries.pointer, queries.stride, heads, keys.pointer, rows.values.pointer, keys.stride
        shape = sight.layer, cache.layers, cache.kv_heads, cache.page_tokens, cache.head_dim
        launcher = self._device.load(kernel, STORED=cache.stored.name)
        grid = len(keys), -(-(heads + cache.kv_heads) // _HEADS)
        turned = angles.pointer, angles.columns
        self._device.launch(launcher, grid, *given, *turned, cache.pointer, *where, *shape)

    def rows(self, queries: DeviceArray, cache: PagedCache, sight: Sight, placed: Placed, out: DeviceArray) -> None:
        """Rows that come alone, each at its place.  There must be memory for all of them: see `goes`."""
        heads, width, spans = queries.columns // cache.head_dim, placed.shape.width, placed.shape.spans
        definitions = _definitions(cache)
        attend = self._device.load(table.ATTEND_SPANS, **definitions)
        join = self._device.load(table.JOIN_SPANS, **definitions)
        asked = queries.pointer, queries.stride, cache.pointer, placed.pointer, width, self._parts
        shape = sight.layer, cache.layers, cache.kv_heads, cache.page_tokens, sight.scale, sight.window
        self._device.launch(attend, (spans, heads, len(queries)), *asked, *shape)
        joined = self._parts, placed.pointer, width, spans, out.pointer, out.stride, sight.window
        self._device.launch(join, (heads, len(queries)), *joined)


def _of_chunks(cache: PagedCache) -> tuple[table.Kernel, int]:
    """The kernel for a chunk's rows, and how many of them a block of it computes."""
    if cache.stored == STORED["f32"]:
        return table.ATTEND_CHUNK, 16
    return table.ATTEND_CHUNK_TENSOR, 64 if cache.head_dim <= 128 else 32


def _definitions(cache: PagedCache) -> dict[str, str]:
    """Of kernels that read it."""
    return {"HEAD_DIM": str(cache.head_dim), "STORED": cache.stored.name}


def _part_bytes(spans: int, heads: int, head_dim: int) -> int:
    return 4 * heads * spans * (head_dim + 2)


def check_width(head_dim: int) -> None:
    """Raises ModelError."""
    if head_dim > WIDEST_HEAD:
        raise ModelError(
            f"its heads have {head_dim} elements, and the GPU engine takes {WIDEST_HEAD} at most; use the processor"
        )
