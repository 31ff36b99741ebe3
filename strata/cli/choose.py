"""Which model a command is about: the one that was named, or the default one."""

from __future__ import annotations

from pathlib import Path


def chosen_model(name: str | None) -> Path:
    """Where it lies.  The default one is fetched if it isn't there.  Raises ModelError."""
    if name is not None:
        from strata.models.hub import find_model

        return find_model(name)
    from strata.models.source import DEFAULT, default_model_path, is_there

    path = default_model_path()
    if is_there(DEFAULT, path.parent):
        return path
    # It takes long to import, and has to be once.
    from strata.models.pull import pull_default

    return pull_default()
