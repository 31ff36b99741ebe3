"""What sets a family of decoders apart, as one value: what its files are called and say, and what its layers do.

Knows no file and no arithmetic of its own; docs/models.md shows how to add a family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from attrs import frozen

from strata.models.block import Block
from strata.models.config import ModelConfig

if TYPE_CHECKING:
    from strata.models.gguf_fields import Fields
    from strata.models.stated import Stated

NAMES: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Of a layer's parts: the checkpoint's name -> GGUF's."""


def _as_it_is(_: object, config: ModelConfig) -> ModelConfig:
    return config


@frozen(kw_only=True)
class Family:
    """How its models differ from llama's."""

    name: str
    """In `general.architecture` of a GGUF file."""
    model_types: tuple[str, ...]
    """In `model_type` of a checkpoint's config.json."""
    block: type[Block] = Block
    """What a layer is made of and does."""
    halves: bool = False
    """Whether GGUF files have rotated pairs in two halves of a head; checkpoints always do."""
    qkv_bias: bool = False
    qk_norm: bool = False
    windowed: bool = True
    """Whether a checkpoint that states a window and not whether it is in use means it."""
    tied: bool = False
    """Whether the embedding is the head's matrix where a checkpoint doesn't say."""
    ends: tuple[str, ...] = ()
    """Tokens that end an answer, though not every GGUF file names them."""
    activations: tuple[str, ...] = ("silu", "swish")
    """Names, in a config.json, of the activation that its block computes with."""
    names: Mapping[str, str] = NAMES
    from_gguf: Callable[[Fields, ModelConfig], ModelConfig] = _as_it_is
    """The sizes that all files state -> with what this family's say besides.  May raise ModelError."""
    from_checkpoint: Callable[[Stated, ModelConfig], ModelConfig] = _as_it_is
