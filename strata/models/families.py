"""The families of decoders that can be run, by the names that files give them.  A register: no file, no arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from strata.errors import ModelError
from strata.models.family import Family
from strata.models.gemma3 import GEMMA3
from strata.models.llama import LLAMA, QWEN2, QWEN3

FAMILIES: Final[Mapping[str, Family]] = {family.name: family for family in (LLAMA, QWEN2, QWEN3, GEMMA3)}
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
