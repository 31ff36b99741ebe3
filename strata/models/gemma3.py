"""Gemma 3, text alone (https://arxiv.org/abs/2503.19786).

Most layers see a window of keys; every sixth sees all, and turns slower.  The embedding is scaled, what a layer adds to
the residual rows is normed before, and GELU opens the gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from attrs import evolve, frozen

from strata.errors import ModelError
from strata.models.block import Block, Parts, Room, Shapes
from strata.models.config import ModelConfig, Rope
from strata.models.family import NAMES, Family
from strata.models.ops import Activation, Array, Kernels
from strata.models.stated import Stated

if TYPE_CHECKING:
    from strata.models.gguf_fields import Fields

_EVERY: Final = 6
"""Each so many layers one sees all, where nothing else is said."""

_THETA, _LOCAL_THETA = 1_000_000.0, 10_000.0

_LAYERS_OF_27B: Final = 62
"""Its queries alone are scaled by hidden / heads; GGUF files don't say so."""

_CAPS: Final = ("attn_logit_softcapping", "final_logit_softcapping")
"""Gemma 2's, which no Gemma 3 is known to have."""


# -- what a layer is and does ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Gemma3Block(Block):
    activation: ClassVar[Activation] = "gelu"
    most_operations: ClassVar[int] = 14

    attended_norm: Array
    """Of what attention adds."""
    fed_forward_norm: Array

    @classmethod
    def shapes(cls, config: ModelConfig) -> Shapes:
        norms: Shapes = {"post_attention_norm.weight": (config.hidden,), "post_ffw_norm.weight": (config.hidden,)}
        return super().shapes(config) | norms

    @classmethod
    def weights(cls, parts: Parts) -> dict[str, Any]:
        return super().weights(parts) | {
            "attended_norm": parts.norm("post_attention_norm.weight"),
            "fed_forward_norm": parts.norm("post_ffw_norm.weight"),
        }

    def run(self, kernels: Kernels, residual: Array, room: Room, attend: Callable[[], None]) -> None:
        self.attention(kernels, residual, room, attend)
        kernels.linear(room.attended, self.output, room.normed)
        kernels.add_norm(room.normed, self.attended_norm, self.eps, residual)
        kernels.norm(residual, self.feed_forward_norm, self.eps, room.normed)
        kernels.gated(room.normed, self.gate_and_up, room.activated)
        kernels.linear(room.activated, self.down, room.normed)
        kernels.add_norm(room.normed, self.fed_forward_norm, self.eps, residual)


# -- what its files say ----------------------------------------------------------------------------------------------


def _from_gguf(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Norms have been made greater by 1 there."""
    own = f"{config.architecture}."
    for cap in _CAPS:
        if own + cap in fields.fields:
            raise ModelError(f"it uses {own}{cap}, which is not supported; use another file")
    width = config.hidden / config.heads if config.layers == _LAYERS_OF_27B else config.head_dim
    return evolve(
        config,
        windows=fields.windows(own, config.layers, _EVERY),
        rope=evolve(config.rope, theta=fields.positive(f"{own}rope.freq_base", _THETA)),
        local_rope=Rope(fields.positive(f"{own}rope.freq_base_swa", _LOCAL_THETA)),
        attention_scale=fields.positive(f"{own}attention.scale", width**-0.5),
        embedding_scale=config.hidden**0.5,
    )


def _from_checkpoint(stated: Stated, config: ModelConfig) -> ModelConfig:
    for variant in (*_CAPS, "use_bidirectional_attention", "attention_bias"):
        if stated.values.get(variant):
            raise ModelError(f"it uses {variant}, which is not supported; use another")
    every = stated.size("sliding_window_pattern", _EVERY)
    return evolve(
        config,
        windows=stated.windows(config.layers, every=every),
        rope=_rope(stated, config, "full_attention", _THETA),
        local_rope=_rope(stated, config, "sliding_attention", stated.positive("rope_local_base_freq", _LOCAL_THETA)),
        attention_scale=stated.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        embedding_scale=config.hidden**0.5,
        norm_plus=1.0,
    )


def _rope(stated: Stated, config: ModelConfig, kind: str, theta: float) -> Rope:
    """Of one kind of layers: newer folders have a part for each, older ones scale those alone that see all."""
    newer = stated.part("rope_parameters")
    if newer.values:
        said = newer.part(kind)
    elif kind == "full_attention":
        said = stated.and_part("rope_scaling")
    else:
        said = Stated({})
    return said.rope(config.head_dim, config.context, theta)


_OWN_NAMES: Final[Mapping[str, str]] = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

GEMMA3: Final = Family(
    name="gemma3",
    model_types=("gemma3_text",),
    block=Gemma3Block,
    halves=True,
    qk_norm=True,
    tied=True,
    ends=("<end_of_turn>",),
    activations=("gelu_pytorch_tanh",),
    names={**NAMES, **_OWN_NAMES},
    from_gguf=_from_gguf,
    from_checkpoint=_from_checkpoint,
)
