"""The llama architecture: which operations follow which.  Touches no number itself and knows no device.

Layers of causal attention with grouped heads and rotated positions, and a gated feed-forward, each adding to the
residual rows (https://arxiv.org/abs/2302.13971, section 2.2).  A slice is one layer of a few tiles of rows: between two
slices only the residual rows are alive, and they lie in the chunk's workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from attrs import astuple, frozen
from numpy.typing import NDArray

from strata.errors import ModelError
from strata.models.architecture import DecodeRow, Logits, SequenceView, Workspace
from strata.models.config import ModelConfig, RawTensor
from strata.models.halves import as_pairs
from strata.models.ops import Array, Cache, CacheShape, Kernels, Matrix, Ops, Sight

_GIB: Final = 2**30

PADDING: Final = 0
"""The token of rows that only make a tile whole; their results are never looked at."""


@frozen
class _Layer:
    attention_norm: Array
    queries_keys_values: Matrix
    bias: Array | None
    """What is added to queries, keys and values."""
    query_norm: Array | None
    key_norm: Array | None
    output: Matrix
    feed_forward_norm: Array
    gate_and_up: Matrix
    down: Matrix


@frozen
class _Weights:
    embedding: Matrix
    layers: tuple[_Layer, ...]
    norm: Array
    head: Matrix


@frozen
class _Room:
    """What one slice or one decode step computes with, a row for each of its rows; nothing in it outlives the call."""

    normed: Array
    queries: Array
    keys: Array
    values: Array
    queries_keys_values: Array
    attended: Array
    activated: Array

    @classmethod
    def of(cls, ops: Ops, config: ModelConfig, rows: int) -> _Room:
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        together = ops.empty(rows, q + 2 * kv)
        return cls(
            normed=ops.empty(rows, config.hidden),
            queries=together[:, :q],
            keys=together[:, q : q + kv],
            values=together[:, q + kv :],
            queries_keys_values=together,
            attended=ops.empty(rows, q),
            activated=ops.empty(rows, config.feed_forward),
        )

    @staticmethod
    def width(config: ModelConfig) -> int:
        """Numbers in one row of a room."""
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        return config.hidden + q + 2 * kv + q + config.feed_forward

    def first(self, rows: int) -> _Room:
        """A view of its first rows."""
        return _Room(*(array[:rows] for array in astuple(self, recurse=False)))


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


class LlamaModel:
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
        self._room: _Room
        self._step: _StepRoom
        self._rows = 0

    @property
    def device(self) -> str:
        return self._ops.device

    def close(self) -> None:
        self._ops.close()

    # -- memory ---------------------------------------------------------------------------------------------------

    def bytes_per_page(self, page_tokens: int) -> int:
        config = self.config
        return 4 * 2 * config.layers * config.kv_heads * config.head_dim * page_tokens

    def bytes_per_workspace(self, chunk_tokens: int) -> int:
        return 4 * self._workspace_rows(chunk_tokens) * self.config.hidden

    def bytes_beside_pages(self, context: int, rows: int) -> int:
        config = self.config
        numbers = self._room_rows(rows) * _Room.width(config) + rows * _StepRoom.width(config)
        return 4 * numbers + self._ops.rotation_bytes(context, config.rope_dim)

    def allocate(self, pages: int, page_tokens: int, *, context: int, rows: int, slots: int = 0) -> None:
        config = self.config
        shape = CacheShape(
            layers=config.layers,
            pages=pages,
            page_tokens=page_tokens,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            slots=slots,
        )
        self._cache = self._ops.cache(shape)
        angles = self._ops.rotation(context, config.rope_dim, config.rope_theta, config.rope_factors)
        self._sights = tuple(
            Sight(layer, angles, config.head_dim**-0.5, window)
            for layer, window in enumerate(config.windows or (0,) * config.layers)
        )
        self._room = _Room.of(self._ops, config, self._room_rows(rows))
        self._step = _StepRoom.of(self._ops, config, rows)
        self._rows = rows

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
        self._ops.embed(self._weights.embedding, np.pad(tokens, padding, constant_values=PADDING), residual)
        for layer in range(self.config.layers):
            for stretch in stretches:
                if layer or stretch.start > origin:
                    yield
                rows = residual[stretch.start - origin : stretch.stop - origin]
                self._read_slice(layer, rows, stretch, handle.pages, start, end)
        last = end - 1 - origin
        logits: Logits = self._logits(residual[last : last + 1])[0]
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

        self._layer(self._ops.tiles, self._weights.layers[layer], rows, room, attend)

    # -- decoding -------------------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[DecodeRow]) -> list[Logits]:
        goes = (rows[at : at + self._rows] for at in range(0, len(rows), self._rows))
        return [logits for go in goes for logits in self._decode(go)]

    def _decode(self, rows: Sequence[DecodeRow]) -> Iterable[Logits]:
        residual = self._step.residual[: len(rows)]
        self._ops.embed(self._weights.embedding, np.array([row.token for row in rows], np.int64), residual)
        for layer in range(self.config.layers):
            self._decode_layer(layer, residual, rows)
        return self._logits(residual)

    def _decode_layer(self, layer: int, residual: Array, rows: Sequence[DecodeRow]) -> None:
        room = self._room.first(len(rows))

        def attend() -> None:
            places = [(row.handle.pages, row.position) for row in rows]
            self._ops.attend_rows(
                room.queries, room.keys, room.values, self._sights[layer], self._cache, places, room.attended
            )

        self._layer(self._ops.rows, self._weights.layers[layer], residual, room, attend)

    # -- both -----------------------------------------------------------------------------------------------------

    def _layer(
        self, kernels: Kernels, weights: _Layer, residual: Array, room: _Room, attend: Callable[[], None]
    ) -> None:
        """One layer of some rows, in place.  `attend` makes `room.attended` of the queries, keys and values there."""
        eps = self.config.rms_eps
        kernels.norm(residual, weights.attention_norm, eps, room.normed)
        kernels.linear(room.normed, weights.queries_keys_values, room.queries_keys_values)
        if weights.bias is not None:
            kernels.add(room.queries_keys_values, weights.bias)
        if weights.query_norm is not None:
            kernels.norm_heads(room.queries, weights.query_norm, eps)
            kernels.norm_heads(room.keys, weights.key_norm, eps)
        attend()
        kernels.add_linear(room.attended, weights.output, residual)
        kernels.norm(residual, weights.feed_forward_norm, eps, room.normed)
        kernels.gated(room.normed, weights.gate_and_up, room.activated)
        kernels.add_linear(room.activated, weights.down, residual)

    def _logits(self, residual: Array) -> NDArray[np.float32]:
        """The logits of rows, each computed by itself whether it was read or decoded: (rows, vocab_size)."""
        kernels = self._ops.rows
        normed, logits = self._step.normed[: len(residual)], self._step.logits[: len(residual)]
        kernels.norm(residual, self._weights.norm, self.config.rms_eps, normed)
        kernels.linear(normed, self._weights.head, logits)
        return self._ops.numbers(logits)


def _refuse_what_does_not_fit(needed: int, available: int) -> None:
    if needed > available:
        raise ModelError(
            f"its weights take {needed / _GIB:.2f} GiB of memory and {available / _GIB:.2f} GiB are free;"
            " use a smaller model or free some memory"
        )


def _load(config: ModelConfig, tensors: Mapping[str, RawTensor], ops: Ops) -> _Weights:
    embedding = ops.matrix([tensors["token_embd.weight"]])
    return _Weights(
        embedding=embedding,
        layers=tuple(_load_layer(f"blk.{layer}", config, tensors, ops) for layer in range(config.layers)),
        norm=ops.vector(tensors["output_norm.weight"]),
        head=embedding if config.tied else ops.matrix([tensors["output.weight"]]),
    )


def _load_layer(prefix: str, config: ModelConfig, tensors: Mapping[str, RawTensor], ops: Ops) -> _Layer:
    def named(name: str) -> RawTensor:
        return tensors[f"{prefix}.{name}"]

    def turned(name: str) -> RawTensor:
        """Of queries or keys: rows in the order in which `rotate` takes a head's elements."""
        return as_pairs(named(name), config) if config.halves else named(name)

    def normed(name: str) -> Array | None:
        return ops.vector(turned(name)) if config.qk_norm else None

    biases = [turned("attn_q.bias"), turned("attn_k.bias"), named("attn_v.bias")] if config.qkv_bias else None
    return _Layer(
        attention_norm=ops.vector(named("attn_norm.weight")),
        queries_keys_values=ops.matrix([turned("attn_q.weight"), turned("attn_k.weight"), named("attn_v.weight")]),
        bias=None if biases is None else ops.vectors(biases),
        query_norm=normed("attn_q_norm.weight"),
        key_norm=normed("attn_k_norm.weight"),
        output=ops.matrix([named("attn_output.weight")]),
        feed_forward_norm=ops.vector(named("ffn_norm.weight")),
        gate_and_up=ops.gated_matrix(named("ffn_gate.weight"), named("ffn_up.weight")),
        down=ops.matrix([named("ffn_down.weight")]),
    )
