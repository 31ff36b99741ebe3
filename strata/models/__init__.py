"""Files become weights, a tokenizer and a chat template here; architectures are written as slices over `Ops`.

Knows file formats and what a model is made of.  Doesn't know who asks, what runs next, or which device computes.
"""

from typing import TYPE_CHECKING

from strata.lazily import lazily

if TYPE_CHECKING:
    from strata.models.file import ModelFile, open_model

__all__ = ["ModelFile", "open_model"]

# Who computes with a model needs neither tokenizers nor templates, which are slow to import.
__getattr__ = lazily(__name__, __all__, ("file",))
