"""Which model a command is about: the one that was named, or the default one."""

from __future__ import annotations

from pathlib import Path


def chosen_model(name: str | None) -> Path:
    """Where it lies.  The default one is fetched if it isn't there.  Raises ModelError."""
    from strata.models.hub import find_model
    from strata.models.pull import pull_default

    return pull_default() if name is None else find_model(name)
