"""What one layer is made of and does, as the llama family has it; others differ by a class that follows from it.

Causal attention with grouped heads and rotated positions, and a gated feed-forward, each adding to the residual rows
(https://arxiv.org/abs/2302.13971, section 2.2).  Touches no number and knows no device, no page and no position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from attrs import astuple, frozen

from strata.models.config import ModelConfig, RawTensor
from strata.models.halves import as_pairs
from strata.models.ops import Activation, Array, Kernels, Matrix, Ops
from strata.models.raw import shifted

Shapes = dict[str, tuple[int, ...]]
"""Of a layer's tensors, rows first."""


@frozen
class Room:
    """What one slice or one decode step computes with, a row for each of its rows; nothing in it outlives the call."""

    normed: Array
    queries: Array
    keys: Array
    values: Array
    queries_keys_values: Array
    attended: Array
    activated: Array

    @classmethod
    def of(cls, ops: Ops, config: ModelConfig, rows: int) -> Room:
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

    def first(self, rows: int) -> Room:
        """A view of its first rows."""
        return Room(*(array[:rows] for array in astuple(self, recurse=False)))


class Parts:
    """One layer's tensors, made ready for a device as its block asks for them."""

    def __init__(self, layer: int, config: ModelConfig, tensors: Mapping[str, RawTensor], ops: Ops) -> None:
        self.config = config
        self.ops = ops
        self._layer = layer
        self._tensors = tensors

    def raw(self, name: str) -> RawTensor:
        return self._tensors[f"blk.{self._layer}.{name}"]

    def turned(self, name: str) -> RawTensor:
        """Of queries or keys: rows in the order in which a head's elements are turned."""
        return as_pairs(self.raw(name), self.config) if self.config.halves else self.raw(name)

    def norm(self, name: str) -> Array:
        return self.ops.vector(shifted(self.raw(name), self.config.norm_plus))

    def head_norm(self, name: str) -> Array | None:
        """Of each head of queries or keys, where they are normed."""
        return self.ops.vector(shifted(self.turned(name), self.config.norm_plus)) if self.config.qk_norm else None

    def bias(self) -> Array | None:
        """What is added to queries, keys and values."""
        if not self.config.qkv_bias:
            return None
        return self.ops.vectors([self.turned("attn_q.bias"), self.turned("attn_k.bias"), self.raw("attn_v.bias")])


@frozen(kw_only=True)
class Block:
    """One layer's weights, on a device."""

    activation: ClassVar[Activation] = "silu"
    most_operations: ClassVar[int] = 10
    """That `run` tells kernels of any configuration; attending is one, `add_norm` two."""

    eps: float
    attention_norm: Array
    queries_keys_values: Matrix
    bias: Array | None
    query_norm: Array | None
    key_norm: Array | None
    output: Matrix
    feed_forward_norm: Array
    gate_and_up: Matrix
    down: Matrix

    @classmethod
    def shapes(cls, config: ModelConfig) -> Shapes:
        """Which tensors a layer has, by GGUF's names, and their shapes."""
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes: Shapes = {
            "attn_norm.weight": (config.hidden,),
            "attn_q.weight": (queries, config.hidden),
            "attn_k.weight": (keys, config.hidden),
            "attn_v.weight": (keys, config.hidden),
            "attn_output.weight": (config.hidden, queries),
            "ffn_norm.weight": (config.hidden,),
            "ffn_gate.weight": (config.feed_forward, config.hidden),
            "ffn_up.weight": (config.feed_forward, config.hidden),
            "ffn_down.weight": (config.hidden, config.feed_forward),
        }
        if config.qkv_bias:
            shapes |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
        if config.qk_norm:
            shapes |= {"attn_q_norm.weight": (config.head_dim,), "attn_k_norm.weight": (config.head_dim,)}
        return shapes

    @classmethod
    def load(cls, parts: Parts) -> Self:
        return cls(**cls.weights(parts))

    @classmethod
    def weights(cls, parts: Parts) -> dict[str, Any]:
        """Each of its fields by name."""
        ops = parts.ops
        rows = [parts.turned("attn_q.weight"), parts.turned("attn_k.weight"), parts.raw("attn_v.weight")]
        return {
            "eps": parts.config.rms_eps,
            "attention_norm": parts.norm("attn_norm.weight"),
            "queries_keys_values": ops.matrix(rows),
            "bias": parts.bias(),
            "query_norm": parts.head_norm("attn_q_norm.weight"),
            "key_norm": parts.head_norm("attn_k_norm.weight"),
            "output": ops.matrix([parts.raw("attn_output.weight")]),
            "feed_forward_norm": parts.norm("ffn_norm.weight"),
            "gate_and_up": ops.gated_matrix(parts.raw("ffn_gate.weight"), parts.raw("ffn_up.weight"), cls.activation),
            "down": ops.matrix([parts.raw("ffn_down.weight")]),
        }

    def run(self, kernels: Kernels, residual: Array, room: Room, attend: Callable[[], None]) -> None:
        """The layer of some rows, in place.  `attend` makes `room.attended` of the queries, keys and values there."""
        self.attention(kernels, residual, room, attend)
        kernels.add_linear(room.attended, self.output, residual)
        kernels.norm(residual, self.feed_forward_norm, self.eps, room.normed)
        kernels.gated(room.normed, self.gate_and_up, room.activated)
        kernels.add_linear(room.activated, self.down, residual)

    def attention(self, kernels: Kernels, residual: Array, room: Room, attend: Callable[[], None]) -> None:
        """Up to `room.attended`."""
        kernels.norm(residual, self.attention_norm, self.eps, room.normed)
        kernels.linear(room.normed, self.queries_keys_values, room.queries_keys_values)
        if self.bias is not None:
            kernels.add(room.queries_keys_values, self.bias)
        if self.query_norm is not None:
            kernels.norm_heads(room.queries, self.query_norm, self.eps)
            kernels.norm_heads(room.keys, self.key_norm, self.eps)
        attend()
