"""A decoder of any family: its memory, a read in slices and a decode step.  Touches no number, and knows no device.

What a layer does is its family's matter (block.py).  A slice is one layer of a few tiles of rows: between two slices
only the residual rows are alive, and they lie in the chunk's workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.draws import Draw
from strata.errors import ModelError
from strata.models.architecture import Answer, DecodeRow, Logits, SequenceView, Workspace
from strata.models.block import Block, Parts, Room
from strata.models.config import ModelConfig, RawTensor, Rope
from strata.models.families import family_of
from strata.models.ops import Array, Cache, CacheShape, Kernels, Matrix, Ops, Sight
from strata.models.raw import shifted

_GIB: Final = 2**30

Places: TypeAlias = Sequence[tuple[Sequence[int], int]]
"""Of rows: each its sequence's pages, and its position."""

_OPERATIONS_OF_HEAD: Final = 2

_RECORDED: Final = 32
"""Rows of the largest step that is recorded: each count of rows takes memory, and larger steps gain little."""

PADDING: Final = 0
"""The token of rows that only make a tile whole; their results are never looked at."""


@frozen
class _Weights:
    embedding: Matrix
    layers: tuple[Block, ...]
    norm: Array
    head: Matrix


@frozen
class _StepRoom:
    """What a decode step has beside a room; its logits are the end of a chunk's too."""

    residual: Array
    normed: Array
    logits: Array

    @classmethod
    def of(cls, ops: Ops, config: ModelConfig, rows: int) -> _StepRoom:
        return cls(
            residual=ops.empty(rows, config.hidden),
            normed=ops.empty(rows, config.hidden),
            logits=ops.empty(rows, config.vocab_size),
        )

    @staticmethod
    def width(config: ModelConfig) -> int:
        """Numbers in one row of it, and the host's copy of the logits."""
        return 2 * config.hidden + 2 * config.vocab_size


class Decoder:
    """Implements `strata.models.architecture.Model` over any device."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, RawTensor], ops: Ops, *, available: int | None = None
    ) -> None:
        """Load the weights.  `available` (bytes) stands for the device's free memory; None: ask the device.

        Raises ModelError where the weights don't fit, before any of it is taken.
        """
        self.config: ModelConfig = config
        self._ops = ops
        self.weight_bytes: int = sum(ops.matrix_bytes(tensor) for tensor in tensors.values())
        _refuse_what_does_not_fit(self.weight_bytes, ops.available_bytes() if available is None else available)
        self._weights = _load(config, tensors, ops)
        self._sights: tuple[Sight, ...] = ()
        self._cache: Cache = None
        self._room: Room
        self._step: _StepRoom
        self._steps: dict[int, Callable[[Places], None]] = {}
        """By how many rows a step has."""
        self._rows = 0

    @property
    def device(self) -> str:
        return self._ops.device

    def close(self) -> None:
        self._ops.close()

    # -- memory ---------------------------------------------------------------------------------------------------

    def bytes_per_page(self, page_tokens: int) -> int:
        return self._ops.bytes_of_page(self._cache_shape(1, page_tokens))

    def bytes_per_workspace(self, chunk_tokens: int) -> int:
        return 4 * self._workspace_rows(chunk_tokens) * self.config.hidden

    def bytes_beside_pages(self, context: int, rows: int) -> int:
        config = self.config
        numbers = self._room_rows(rows) * Room.width(config) + rows * _StepRoom.width(config)
        angles = len(self._ropes()) * self._ops.rotation_bytes(context, config.rope_dim)
        attending = self._ops.context_bytes(context, config.heads, config.head_dim)
        recorded = min(rows, _RECORDED) * self._ops.recorder_bytes(self._most_operations())
        return 4 * numbers + angles + attending + recorded

    def _most_operations(self) -> int:
        """Of a step."""
        return sum(layer.most_operations for layer in self._weights.layers) + _OPERATIONS_OF_HEAD

    def allocate(self, pages: int, page_tokens: int, *, context: int, rows: int, slots: int = 0) -> None:
        config = self.config
        self._cache = self._ops.cache(self._cache_shape(pages, page_tokens, slots))
        self._ops.expect_context(context, config.heads, self._cache)
        self._sights = tuple(self._look(context))
        self._room = Room.of(self._ops, config, self._room_rows(rows))
        self._step = _StepRoom.of(self._ops, config, rows)
        self._steps = {}
        self._rows = rows

    def _cache_shape(self, pages: int, page_tokens: int, slots: int = 0) -> CacheShape:
        config = self.config
        return CacheShape(
            layers=config.layers,
            pages=pages,
            page_tokens=page_tokens,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            slots=slots,
        )

    def _look(self, context: int) -> Iterator[Sight]:
        """How each layer's rows look at keys; layers that turn alike share their angles."""
        config = self.config
        scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        angles = {
            rope: self._ops.rotation(context, config.rope_dim, rope.theta, rope.factors, rope.scale)
            for rope in self._ropes()
        }
        for layer in range(config.layers):
            yield Sight(layer, angles[self._rope(layer)], scale, config.window(layer))

    def _rope(self, layer: int) -> Rope:
        config = self.config
        return config.local_rope if config.window(layer) and config.local_rope is not None else config.rope

    def _ropes(self) -> frozenset[Rope]:
        return frozenset(map(self._rope, range(self.config.layers)))

    def copy_out(self, page: int, slot: int) -> None:
        self._ops.copy_out(self._cache, page, slot)

    def copy_in(self, slot: int, page: int) -> None:
        self._ops.copy_in(self._cache, slot, page)

    def workspace(self, chunk_tokens: int) -> Workspace:
        """The residual rows."""
        return self._ops.empty(self._workspace_rows(chunk_tokens), self.config.hidden)

    def _workspace_rows(self, chunk_tokens: int) -> int:
        """A chunk that begins and ends inside a tile touches one more than its length says."""
        tile = self._ops.tile
        return (chunk_tokens + 2 * (tile - 1)) // tile * tile

    def _room_rows(self, rows: int) -> int:
        """As many as the longest slice or a decode step has: the one room serves both."""
        return max(rows, self._ops.slice_tiles(0) * self._ops.tile)

    def state_parts(self, handle: SequenceView, length: int) -> Mapping[str, Iterable[memoryview]]:
        return {"kv": self._ops.page_bytes(self._cache, handle.pages, length)}

    # -- reading --------------------------------------------------------------------------------------------------

    def slices(self, tokens: int, start: int) -> int:
        return self.config.layers * len(list(self._stretches(start, start + tokens)))

    def _stretches(self, start: int, end: int) -> Iterator[range]:
        """The positions of each slice: whole tiles on the grid from position 0, that cover start .. end - 1."""
        tile = self._ops.tile
        first = start - start % tile
        while first < end:
            last = first
            for _ in range(self._ops.slice_tiles(first)):
                if last < end:
                    last += tile
            yield range(first, last)
            first = last

    def read(
        self, handle: SequenceView, start: int, tokens: NDArray[np.int64], workspace: Workspace
    ) -> Generator[None, None, Logits]:
        end = start + len(tokens)
        stretches = list(self._stretches(start, end))
        origin = stretches[0].start
        residual = workspace[: stretches[-1].stop - origin]
        padding = (start - origin, stretches[-1].stop - end)
        self._embed(np.pad(tokens, padding, constant_values=PADDING), residual)
        for layer in range(self.config.layers):
            for stretch in stretches:
                if layer or stretch.start > origin:
                    yield
                rows = residual[stretch.start - origin : stretch.stop - origin]
                self._read_slice(layer, rows, stretch, handle.pages, start, end)
        last = end - 1 - origin
        self._head(self._ops.rows, residual[last : last + 1])
        logits: Logits = self._host_logits(1)[0]
        return logits

    def _read_slice(self, layer: int, rows: Array, stretch: range, pages: Sequence[int], start: int, end: int) -> None:
        room = self._room.first(len(stretch))

        def attend() -> None:
            real = range(max(start, stretch.start), min(end, stretch.stop))
            self._ops.attend_tiles(
                room.queries,
                room.keys,
                room.values,
                self._sights[layer],
                self._cache,
                pages,
                stretch.start,
                real,
                room.attended,
            )

        self._weights.layers[layer].run(self._ops.tiles, rows, room, attend)

    # -- decoding -------------------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[DecodeRow]) -> list[Answer]:
        goes = (rows[at : at + self._rows] for at in range(0, len(rows), self._rows))
        return [answer for go in goes for answer in self._decode(go)]

    def _decode(self, rows: Sequence[DecodeRow]) -> Iterable[Answer]:
        count = len(rows)
        self._embed(np.array([row.token for row in rows], np.int64), self._step.residual[:count])
        if count not in self._steps:
            self._steps[count] = self._record(count)
        self._steps[count]([(row.handle.pages, row.position) for row in rows])
        return self._answers([row.draw for row in rows], [row.position + 1 for row in rows])

    def _answers(self, draws: Sequence[Draw | None], positions: Sequence[int]) -> Iterable[Answer]:
        """Of so many rows; positions are those of the tokens to come.

        Each row's logits are copied by themselves unless all are wanted.
        """
        logits = self._step.logits[: len(draws)]
        drawn = self._ops.draw(logits, draws, positions) if any(draws) else (None,)
        if all(token is None for token in drawn):
            yield from self._host_logits(len(draws))
            return
        for row, token in enumerate(drawn):
            yield self._ops.numbers(logits[row : row + 1])[0] if token is None else token

    def _record(self, count: int) -> Callable[[Places], None]:
        """All between the embedding and the logits of so many rows, wherever they are."""
        recorder = self._ops.recorder() if count <= _RECORDED else None
        if recorder is None:
            return partial(self._one_by_one, count)
        self._operations(count, recorder, recorder.attend)
        return recorder.run

    def _one_by_one(self, count: int, places: Places) -> None:
        def attend(queries: Array, keys: Array, values: Array, sight: Sight, cache: Cache, out: Array) -> None:
            self._ops.attend_rows(queries, keys, values, sight, cache, places, out)

        self._operations(count, self._ops.rows, attend)

    def _operations(self, count: int, kernels: Kernels, attend_at_places: Callable[..., None]) -> None:
        residual, room = self._step.residual[:count], self._room.first(count)
        for sight, layer in zip(self._sights, self._weights.layers, strict=True):
            inputs = (room.queries, room.keys, room.values, sight, self._cache)
            layer.run(kernels, residual, room, partial(attend_at_places, *inputs, room.attended))
        self._head(kernels, residual)

    # -- both -----------------------------------------------------------------------------------------------------

    def _embed(self, tokens: NDArray[np.int64], residual: Array) -> None:
        self._ops.embed(self._weights.embedding, tokens, self.config.embedding_scale, residual)

    def _head(self, kernels: Kernels, residual: Array) -> None:
        """The step's logits, of rows that are computed each by itself, whether they were read or decoded."""
        normed, logits = self._step.normed[: len(residual)], self._step.logits[: len(residual)]
        kernels.norm(residual, self._weights.norm, self.config.rms_eps, normed)
        kernels.linear(normed, self._weights.head, logits)

    def _host_logits(self, count: int) -> NDArray[np.float32]:
        """(count, vocab_size)."""
        return self._ops.numbers(self._step.logits[:count])


def _refuse_what_does_not_fit(needed: int, available: int) -> None:
    if needed > available:
        raise ModelError(
            f"its weights take {needed / _GIB:.2f} GiB of memory and {available / _GIB:.2f} GiB are free;"
            " use a smaller model or free some memory"
        )


def _load(config: ModelConfig, tensors: Mapping[str, RawTensor], ops: Ops) -> _Weights:
    embedding, block = ops.matrix([tensors["token_embd.weight"]]), family_of(config.architecture).block
    return _Weights(
        embedding=embedding,
        layers=tuple(block.load(Parts(layer, config, tensors, ops)) for layer in range(config.layers)),
        norm=ops.vector(shifted(tensors["output_norm.weight"], config.norm_plus)),
        head=embedding if config.tied else ops.matrix([tensors["output.weight"]]),
    )
