"""From an opened file to a model that computes: which class runs which architecture.  Knows no arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from strata.errors import ModelError
from strata.models.architecture import Model
from strata.models.file import ModelFile
from strata.models.llama import LlamaModel
from strata.models.ops import Ops

_ARCHITECTURES: Final[Mapping[str, type[LlamaModel]]] = {"llama": LlamaModel}


def make_model(file: ModelFile, ops: Ops, *, available: int | None = None) -> Model:
    """Load the file's weights onto a device, which the model then owns: it is closed with it, or at once on failure.

    `available` (bytes) stands for what is free there; None: ask it.  Raises ModelError, one line that names the file,
    where the weights don't fit or nothing runs the architecture.
    """
    try:
        return _load(file, ops, available)
    except BaseException as error:
        ops.close()
        if isinstance(error, ModelError):
            raise ModelError(f"{file.path}: {error}") from error
        raise


def _load(file: ModelFile, ops: Ops, available: int | None) -> Model:
    kind = _ARCHITECTURES.get(file.architecture)
    if kind is None:
        raise ModelError(f"the architecture {file.architecture!r} is not supported")
    return kind(file.config, file.tensors, ops, available=available)
