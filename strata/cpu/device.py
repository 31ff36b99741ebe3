"""The processor as it is best used here: compiled kernels where there are any, else NumPy.  Knows no kernel itself."""

from __future__ import annotations

import logging
from typing import Final

from strata.cpu.choice import choose
from strata.cpu.ops import CpuOps

_log: Final = logging.getLogger(__name__)


def open_cpu(threads: int | None = None, *, kernels: str | None = None) -> CpuOps:
    """Operations on `threads` threads (None: as many as there are processors to use), to be closed.

    `kernels` names an instruction set or `numpy`; None: what STRATA_KERNELS says, else the best.  Raises ConfigError
    where they can't run here.
    """
    choice = choose(kernels)
    if choice.mend:
        _log.warning("strata: computing with %s: %s", choice.name, choice.mend)
    if not choice.compiled:
        return CpuOps(threads)
    # Here and not above: it can't be imported where nothing was compiled.
    from strata.cpu.compiled import CompiledOps

    return CompiledOps(threads, choice.name)
