"""A package's names, each imported when it is first asked for.  Knows no package.

A room of its own as `strata` itself begins with it: it imports nothing, for until a command can take Ctrl-C that ends
in a traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


def lazily(package: str, names: Sequence[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: these modules of it are asked in turn, so that what takes long to import is last."""

    def get(name: str) -> Any:
        from importlib import import_module

        if name in names:
            for home in homes:
                module = import_module(f"{package}.{home}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
