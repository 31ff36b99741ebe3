"""What a model is, as plain values: its sizes, and its weights as they lie in the file.

A room's corner of its own because everybody who builds on a model needs these and nothing of how they were read.
Knows no file format's code, no arithmetic and no device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from attrs import field, frozen

from strata.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCKS: Final[Mapping[str, tuple[int, int]]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Kind of tensor -> elements of a block and its bytes (ggml's `ggml-common.h`).  Blocks lie along a row."""

KINDS: Final = tuple(BLOCKS)
"""The kinds of tensor that can be computed with; a file that has others is refused by name."""

MAX_SIZE: Final = 1 << 31
"""No number of rows, layers, tokens or elements of a real model is near this."""


@frozen
class Rope:
    """How heads are turned by their position."""

    theta: float
    factors: tuple[float, ...] = ()
    """What each pair's speed of rotation is divided by, one for each pair; none: by nothing."""
    scale: float = 1.0
    """What is turned is multiplied by it too."""


@frozen(kw_only=True)
class ModelConfig:
    """A model's sizes and constants, as its file states them.  Lengths in elements, `context` in tokens."""

    architecture: str
    """The name in the file: `llama`."""
    name: str
    """What the file calls itself (`general.name`), for people."""
    vocab_size: int
    """Rows of the head, so the length of a row of logits."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    context: int
    """The longest sequence that it was trained for."""
    rms_eps: float
    rope: Rope
    rope_dim: int
    """How many of a head's elements are rotated."""
    tied: bool
    """Whether the embedding is the head's matrix too (`output.weight` is absent)."""
    eos_ids: frozenset[int]
    """Tokens that end an answer."""
    bos_id: int | None
    add_bos: bool
    """Whether the model wants `bos_id` at the start of every text."""
    qkv_bias: bool = False
    """Whether queries, keys and values have something added to them."""
    qk_norm: bool = False
    """Whether each head of queries and keys is normed before it is rotated."""
    halves: bool = False
    """Whether the file has a head's rotated pairs as (i, i + rope_dim / 2) and not as neighbours (2i, 2i + 1)."""
    windows: tuple[int, ...] = ()
    """How many keys a row of each layer sees, its own the last of them; 0: all.  Empty: all in every layer."""
    local_rope: Rope | None = None
    """Of layers with a window, where it is another."""
    attention_scale: float | None = None
    """What products of queries and keys are multiplied by; None: one by the root of a head's length."""
    embedding_scale: float = 1.0
    """What a token's row of the embedding is multiplied by."""
    norm_plus: float = 0.0
    """What is added to the weights of each norm as the file has them."""

    def window(self, layer: int) -> int:
        """How many keys a row of this layer sees; 0: all."""
        return self.windows[layer] if self.windows else 0


@frozen
class RawTensor:
    """A weight as it lies in the file: a shape and bytes, not yet numbers.

    `shape` is in NumPy's order, rows first: a matrix that maps `columns` inputs to `rows` outputs is (rows, columns).
    `data` is its bytes, a flat uint8 array, mapped from the file and read-only; how they make numbers is `kind`'s
    matter (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
    """

    name: str
    kind: str
    """One of `KINDS`."""
    shape: tuple[int, ...]
    data: NDArray[np.uint8] = field(repr=lambda data: f"<{data.nbytes} bytes>", eq=False)


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """How many bytes a tensor takes in the file.  Raises ModelError for an unknown kind or an impossible shape."""
    if kind not in BLOCKS:
        raise ModelError(f"a tensor is of the kind {kind}, which is not supported; use one of {', '.join(KINDS)}")
    elements, size = BLOCKS[kind]
    if not shape or min(shape) < 1 or shape[-1] % elements:
        raise ModelError(f"a tensor of the kind {kind} has the shape {shape}, which cannot be; fetch the file again")
    return math.prod(shape) // elements * size
