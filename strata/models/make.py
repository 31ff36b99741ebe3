"""From an opened file to a model that computes.  Knows no arithmetic."""

from __future__ import annotations

from strata.errors import ModelError
from strata.models.architecture import Model
from strata.models.decoder import Decoder
from strata.models.families import family_of
from strata.models.file import ModelFile
from strata.models.ops import Ops


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
    family_of(file.architecture)
    return Decoder(file.config, file.tensors, ops, available=available)
