"""What a command takes where nobody chose: which model it is about, and where a server's engine runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ENGINE_HOST: Final = "process" if sys.platform == "linux" else "thread"
"""Of `strata serve`: where its death can't be the server's, if there is such."""


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
