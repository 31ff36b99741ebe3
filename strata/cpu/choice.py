"""Which kernels compute: the compiled ones for the best instruction set that runs here, or NumPy.

Knows that there are several; nothing of what they compute.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from attrs import frozen

from strata.errors import ConfigError

VARIABLE: Final = "STRATA_KERNELS"
NUMPY: Final = "numpy"

_ALL: Final = (NUMPY, "portable", "avx2", "avx512")


@frozen
class Choice:
    """`name` is the instruction set, or `numpy`.  `mend` says what to do where nobody asked for the slowest."""

    name: str
    mend: str | None = None

    @property
    def compiled(self) -> bool:
        return self.name != NUMPY


def module() -> ModuleType | None:
    """The compiled extension; None where it wasn't built."""
    try:
        from strata.cpu import _kernels
    except ImportError:
        return None
    return _kernels


def runnable() -> list[str]:
    """All that can be chosen here, the best one last."""
    compiled = module()
    return [NUMPY, *([] if compiled is None else compiled.sets())]


def choose(wanted: str | None = None, environ: Mapping[str, str] = os.environ) -> Choice:
    """The kernels asked for, by argument or by STRATA_KERNELS; else the best.

    Raises ConfigError where they can't run here.
    """
    wanted = wanted or environ.get(VARIABLE) or None
    runs = runnable()
    if wanted is None:
        return Choice(runs[-1], _MEND if runs == [NUMPY] else None)
    if wanted not in runs:
        known = "can't run here" if wanted in _ALL else "are not known"
        raise ConfigError(VARIABLE, f"the kernels {wanted!r} {known}; use one of {', '.join(runs)}")
    return Choice(wanted)


_MEND: Final = (
    "there are no compiled kernels, so all of it is several times slower: install a C compiler and install Strata again"
)


if __name__ == "__main__":
    # What `make` shows: pip keeps to itself what a build says.
    found = choose()
    print(f"kernels: {found.name}" + (f"; {found.mend}" if found.mend else ""))
