"""Which host a model's engine gets: a thread of this process, or a process of its own.

A room of its own because here alone the settings, the file and the two kinds of host meet.  Knows no actor.
"""

from __future__ import annotations

import sys
from pathlib import Path

from strata.config import Settings
from strata.engine.host import EngineHost, ThreadHost
from strata.engine.process_host import ProcessHost
from strata.engine.spec import file_engine
from strata.errors import ConfigError
from strata.models.file import OpenedOnce


def make_host(model: OpenedOnce, settings: Settings, trace: Path | None, incarnation: int) -> EngineHost:
    """On a thread where the settings name none.  Raises ConfigError: this system has no such host."""
    hosting = settings.hosting
    if hosting.engine_host != "process":
        # Here and not above: it imports all that an engine is made of.
        from strata.engine.from_file import make_engine

        return ThreadHost(
            lambda: make_engine(model.with_weights(), settings, trace, trace_goes_on=incarnation > 1),
            incarnation=incarnation,
            watchdog_floor_s=hosting.watchdog_floor_s,
        )
    if sys.platform != "linux":
        raise ConfigError("engine_host", "a process of its own needs Linux; leave it unset, or name thread")
    spec = file_engine(model.path, settings, trace, trace_goes_on=incarnation > 1, sha256=model.sha256)
    return ProcessHost(spec, incarnation=incarnation, settings=hosting)
