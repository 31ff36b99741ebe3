"""Which tensors a model of each architecture consists of, and their shapes.

So a file is found wanting when it is opened, by the name of what it lacks, and not in the middle of a forward pass.
Knows sizes only: no bytes, no arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from strata.errors import ModelError
from strata.models.config import ARCHITECTURES, MAX_SIZE, ModelConfig

Shape = tuple[int, ...]


def refuse_misfits(config: ModelConfig, shapes: Mapping[str, Shape]) -> None:
    """Raise ModelError unless `shapes` (rows first, by tensor name) are exactly those that `config` asks for."""
    _refuse_nonsense(config)
    if config.layers > len(shapes):
        raise ModelError(f"it states {config.layers} layers and has only {len(shapes)} tensors; fetch it again")
    wanted = expected_shapes(config)
    for name, shape in wanted.items():
        if name not in shapes:
            raise ModelError(f"the tensor {name} is missing; fetch the file again or use another")
        if shapes[name] != shape:
            raise ModelError(f"the tensor {name} has shape {shapes[name]} where {shape} belongs; use another file")
    extra = sorted(set(shapes) - set(wanted))
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise ModelError(
            f"it is a variant of {config.architecture} that is not supported (the tensor {extra[0]}{more}); use another"
        )


def _refuse_nonsense(config: ModelConfig) -> None:
    """Whoever said it, the file or its index: sizes that can be, heads that fit each other, tokens that there are."""
    sizes = (config.vocab_size, config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim)
    if not all(0 < size < MAX_SIZE for size in (*sizes, config.feed_forward, config.context, config.rope_dim)):
        raise ModelError("it states a size that cannot be; fetch it again or use another file")
    if not all(math.isfinite(number) and number > 0 for number in (config.rms_eps, config.rope_theta)):
        raise ModelError("it states a constant that cannot be; fetch it again or use another file")
    if config.heads % config.kv_heads:
        raise ModelError("its heads do not fit each other; fetch it again or use another file")
    if config.rope_dim % 2 or config.rope_dim > config.head_dim:
        raise ModelError(f"it rotates {config.rope_dim} of {config.head_dim} elements; use another file")
    ids = config.eos_ids if config.bos_id is None else config.eos_ids | {config.bos_id}
    if not all(0 <= token < config.vocab_size for token in ids):
        raise ModelError("it names a token outside the vocabulary; fetch it again or use another file")


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape (rows first) of every tensor of such a model, in the order in which a forward pass meets them."""
    if config.architecture not in ARCHITECTURES:
        raise ModelError(f"the architecture {config.architecture!r} is not supported ({', '.join(ARCHITECTURES)} is)")
    shapes: dict[str, Shape] = {"token_embd.weight": (config.vocab_size, config.hidden)}
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in _llama_layer(config).items()}
    shapes["output_norm.weight"] = (config.hidden,)
    if not config.tied:
        shapes["output.weight"] = (config.vocab_size, config.hidden)
    return shapes


def _llama_layer(config: ModelConfig) -> dict[str, Shape]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "attn_norm": (config.hidden,),
        "attn_q": (queries, config.hidden),
        "attn_k": (keys, config.hidden),
        "attn_v": (keys, config.hidden),
        "attn_output": (config.hidden, queries),
        "ffn_norm": (config.hidden,),
        "ffn_gate": (config.feed_forward, config.hidden),
        "ffn_up": (config.feed_forward, config.hidden),
        "ffn_down": (config.hidden, config.feed_forward),
    }
