"""An engine for a process of its own that takes more memory than it may have."""

from __future__ import annotations

from typing import Any

import numpy as np

from strata.engine.spec import make_file_engine
from strata.messages import Step, ToEngine
from strata.testing.chaos import ChaosEngine


class HungryEngine(ChaosEngine):
    def handle(self, message: ToEngine) -> None:
        if isinstance(message, Step):
            np.ones(1 << 30)
        super().handle(message)


def hungry(**arguments: Any) -> HungryEngine:
    """`arguments`: as `file_engine` names them."""
    return HungryEngine(make_file_engine(**arguments))
