"""A runtime that is still being opened, to those who serve meanwhile.  Knows nothing of how it is opened.

A room of its own because a server answers from the first moment: it is alive, and not ready yet.
"""

from __future__ import annotations

from typing import Final

from strata.config import Settings
from strata.errors import EngineUnavailable
from strata.runtime import Health, Runtime

LOADING: Final = "the model is being loaded"


class Arriving:
    """The place of a runtime; whoever opens it gives it to `came`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._runtime: Runtime | None = None

    @classmethod
    def of(cls, runtime: Runtime | Arriving) -> Arriving:
        """Of a runtime that is there already, too."""
        if isinstance(runtime, Arriving):
            return runtime
        arrived = cls(runtime.settings)
        arrived.came(runtime)
        return arrived

    @property
    def runtime(self) -> Runtime:
        """Raises EngineUnavailable until it is there."""
        if self._runtime is None:
            raise EngineUnavailable(LOADING)
        return self._runtime

    def came(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def health(self) -> Health:
        return Health("loading", LOADING) if self._runtime is None else self._runtime.health()
