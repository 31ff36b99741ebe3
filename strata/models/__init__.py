"""Files become weights, a tokenizer and a chat template here; architectures are written as slices over `Ops`.

Knows file formats and what a model is made of.  Doesn't know who asks, what runs next, or which device computes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.models.file import ModelFile, open_model

__all__ = ["ModelFile", "open_model"]


def __getattr__(name: str) -> Any:
    """Who computes with a model needs neither tokenizers nor templates, which are slow to import."""
    if name not in __all__:
        raise AttributeError(f"module 'strata.models' has no attribute {name!r}")
    return getattr(import_module("strata.models.file"), name)
