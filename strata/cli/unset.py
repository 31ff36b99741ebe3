"""What is used where a setting is unset, as far as it can be told before a start.  Decides none of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from strata.cli.choose import ENGINE_HOST
from strata.config import Device, Settings

if TYPE_CHECKING:
    from strata.gpu.found import Found
    from strata.models.file import ModelFile


def computed(settings: Settings, model: ModelFile | None, card: Found) -> dict[str, str]:
    """By the names of settings, unset or not.  `model`: the one that would be served, if it is here."""
    from strata.engine.budget import LONGEST_UNASKED
    from strata.http.security import names_of

    names = names_of(settings.serve)
    values = {
        "engine_host": ENGINE_HOST,
        "allowed_hosts": "any" if names is None else " ".join(sorted(names)),
        **_of_device(settings, card),
    }
    if model is not None:
        values["served_name"] = model.name
        # How much memory is left is known when the weights are loaded.
        values["context"] = f"{min(model.config.context, LONGEST_UNASKED)}, less if kv_mib holds less"
    return values


def _of_device(settings: Settings, card: Found) -> dict[str, str]:
    if settings.engine.device is Device.CUDA:
        # Products of 32 bits are our own kernels' anyway.
        library = settings.engine.activations != "f32" and card.cublas is not None
        return {"products": "cublas" if library else "own"}
    from strata.cpu.machine import usable_processors

    hosting = settings.hosting
    apart = (hosting.engine_host or ENGINE_HOST) == "process"
    return {"threads": str(usable_processors(of=len(hosting.cpus) if apart else None))}


def words(field: attrs.Attribute[Any]) -> str:
    """What its line for people says of it being unset."""
    said = re.search(r"unset: [^;]+", field.metadata.get("help", ""))
    return said[0] if said else "unset"
