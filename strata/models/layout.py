"""Which tensors a model of each architecture consists of, and their shapes.

So a file is found wanting when it is opened, by the name of what it lacks, and not in the middle of a forward pass.
Knows sizes only: no bytes, no arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from strata.errors import ModelError
from strata.models.config import MAX_SIZE, ModelConfig, Rope
from strata.models.families import family_of

Shape = tuple[int, ...]


def refuse_misfits(config: ModelConfig, shapes: Mapping[str, Shape]) -> None:
    """Raise ModelError unless `shapes` (rows first, by tensor name) are exactly those that `config` asks for."""
    _refuse_nonsense(config)
    refuse_more_layers_than_tensors(config.layers, len(shapes))
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


def refuse_more_layers_than_tensors(layers: int, tensors: int) -> None:
    """Raise ModelError before anything is made for each layer: a damaged number may be any."""
    if layers > tensors:
        raise ModelError(f"it states {layers} layers and has only {tensors} tensors; fetch it again")


def _refuse_nonsense(config: ModelConfig) -> None:
    """Whoever said it, the file or its index: sizes that can be, heads that fit each other, tokens that there are."""
    sizes = (config.vocab_size, config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim)
    if not all(0 < size < MAX_SIZE for size in (*sizes, config.feed_forward, config.context, config.rope_dim)):
        raise ModelError("it states a size that cannot be; fetch it again or use another file")
    if not all(math.isfinite(number) and number > 0 for number in _constants(config)):
        raise ModelError("it states a constant that cannot be; fetch it again or use another file")
    if config.heads % config.kv_heads:
        raise ModelError("its heads do not fit each other; fetch it again or use another file")
    if config.rope_dim % 2 or config.rope_dim > config.head_dim:
        raise ModelError(f"it rotates {config.rope_dim} of {config.head_dim} elements; use another file")
    if not all(len(rope.factors) in (0, config.rope_dim // 2) for rope in _ropes(config)):
        raise ModelError("it has not one factor of rotation for each pair; fetch it again or use another file")
    if len(config.windows) not in (0, config.layers) or not all(0 <= window < MAX_SIZE for window in config.windows):
        raise ModelError("it has not one window of keys for each layer; fetch it again or use another file")
    ids = config.eos_ids if config.bos_id is None else config.eos_ids | {config.bos_id}
    if not all(0 <= token < config.vocab_size for token in ids):
        raise ModelError("it names a token outside the vocabulary; fetch it again or use another file")


def _ropes(config: ModelConfig) -> tuple[Rope, ...]:
    return (config.rope,) if config.local_rope is None else (config.rope, config.local_rope)


def _constants(config: ModelConfig) -> Iterator[float]:
    yield from (config.rms_eps, config.embedding_scale)
    yield from () if config.attention_scale is None else (config.attention_scale,)
    for rope in _ropes(config):
        yield from (rope.theta, rope.scale, *rope.factors)


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape (rows first) of every tensor of such a model, in the order in which a forward pass meets them."""
    layer_shapes = family_of(config.architecture).block.shapes(config)
    shapes: dict[str, Shape] = {"token_embd.weight": (config.vocab_size, config.hidden)}
    for layer in range(config.layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in layer_shapes.items()}
    shapes["output_norm.weight"] = (config.hidden,)
    if not config.tied:
        shapes["output.weight"] = (config.vocab_size, config.hidden)
    return shapes
