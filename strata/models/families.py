"""The families of decoders that can be run, and what sets each apart.  A table: no file, no arithmetic.

All are layers of causal attention with grouped heads and rotated positions and a gated feed-forward, normed by the root
of the mean square.  docs/models.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from strata.errors import ModelError


@frozen(kw_only=True)
class Family:
    """How its models differ from llama's."""

    name: str
    """In `general.architecture` of a GGUF file."""
    model_types: tuple[str, ...]
    """In `model_type` of a checkpoint's config.json."""
    halves: bool = False
    """Whether GGUF files have rotated pairs in two halves of a head; checkpoints always do."""
    windowed: bool = True
    """Whether a checkpoint that states a window and not whether it is in use means it."""
    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        Family(name="llama", model_types=("llama", "mistral")),
        # https://arxiv.org/abs/2407.10671
        Family(name="qwen2", model_types=("qwen2",), halves=True, windowed=False, qkv_bias=True),
        # https://arxiv.org/abs/2505.09388
        Family(name="qwen3", model_types=("qwen3",), halves=True, windowed=False, qk_norm=True),
    )
}
"""By name."""


def family_of(architecture: str) -> Family:
    """By its name in a GGUF file.  Raises ModelError."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelError(f"the architecture {architecture!r} is not supported ({', '.join(FAMILIES)} are)")
    return family


def family_of_checkpoint(model_type: str) -> Family:
    """By its name in a config.json.  Raises ModelError."""
    for family in FAMILIES.values():
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in FAMILIES.values() for name in family.model_types)
    raise ModelError(f"the model_type {model_type!r} is not supported ({known} are)")
