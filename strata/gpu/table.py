"""Every kernel of `cuda/`: its file, its arguments, its block.  Knows no value of any of them.

A test holds it against the `.cu` files, and the emulated driver against the types that a compiler sees.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen
class Kernel:
    """`arguments`: their types as letters of Python's `struct`; `block`: threads."""

    file: str
    name: str
    arguments: str
    block: int = 128


_LINEAR: Final = "PiPPiiii"
_GATED: Final = "PiPPPiiii"

NORM: Final = Kernel("norm.cu", "rms_norm", "PiPPiif")
ADD_NORM: Final = Kernel("norm.cu", "add_norm", "PiPPiif")
NORM_HEADS: Final = Kernel("norm.cu", "norm_heads", "PiPif", block=32)
ADD_VECTOR: Final = Kernel("add.cu", "add_vector", "PiPi")
TURN_AND_STORE: Final = Kernel("turn.cu", "turn_and_store", "PiiPPiPiPPiiiiii")
TURN_AND_STORE_ROWS: Final = Kernel("turn.cu", "turn_and_store_rows", TURN_AND_STORE.arguments)
ATTEND_CHUNK: Final = Kernel("chunk.cu", "attend_chunk", "PiPPPiiiiiiifi")
ATTEND_CHUNK_TENSOR: Final = Kernel("chunk_tensor.cu", "attend_chunk_tensor", ATTEND_CHUNK.arguments)
ATTEND_SPANS: Final = Kernel("decode.cu", "attend_spans", "PiPPiPiiiifi")
JOIN_SPANS: Final = Kernel("decode.cu", "join_spans", "PPiiPii")
EMBED: Final = Kernel("linear.cu", "embed", "PPPiif")
LINEAR_ROWS: Final = Kernel("linear.cu", "linear_rows", _LINEAR)
ADD_LINEAR_ROWS: Final = Kernel("linear.cu", "add_linear_rows", _LINEAR)
GATED_ROWS: Final = Kernel("linear.cu", "gated_rows", _GATED)
LINEAR_TILES: Final = Kernel("linear.cu", "linear_tiles", _LINEAR, block=256)
ADD_LINEAR_TILES: Final = Kernel("linear.cu", "add_linear_tiles", _LINEAR, block=256)
GATED_TILES: Final = Kernel("linear.cu", "gated_tiles", _GATED, block=256)
LINEAR_TENSOR: Final = Kernel("tensor.cu", "linear_tensor", _LINEAR, block=256)
ADD_LINEAR_TENSOR: Final = Kernel("tensor.cu", "add_linear_tensor", _LINEAR, block=256)
GATED_TENSOR: Final = Kernel("tensor.cu", "gated_tensor", _GATED, block=256)
ROUND_ROWS: Final = Kernel("sixteen.cu", "round_rows", "PiPi")
ROUND_WEIGHTS: Final = Kernel("sixteen.cu", "round_weights", "PiPi")
OPEN_GATES: Final = Kernel("sixteen.cu", "open_gates", "PiPii")
DRAW: Final = Kernel("draw.cu", "draw", "PiiPP", block=256)

KERNELS: Final = (
    *(NORM, ADD_NORM, NORM_HEADS, ADD_VECTOR, TURN_AND_STORE, TURN_AND_STORE_ROWS),
    *(ATTEND_CHUNK, ATTEND_CHUNK_TENSOR, ATTEND_SPANS, JOIN_SPANS),
    *(EMBED, LINEAR_ROWS, ADD_LINEAR_ROWS, GATED_ROWS, LINEAR_TILES, ADD_LINEAR_TILES, GATED_TILES),
    *(LINEAR_TENSOR, ADD_LINEAR_TENSOR, GATED_TENSOR, ROUND_ROWS, ROUND_WEIGHTS, OPEN_GATES),
    DRAW,
)
