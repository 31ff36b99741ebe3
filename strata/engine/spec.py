"""Which engine a process of its own is to build: a name and plain values, that can be sent.

A room of its own because a closure can't be sent to another process, and what can be must need nothing that is not in
this file.  Knows no engine: what the name stands for is found, and imported, where it is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from strata.config import EngineSettings, SchedulerSettings, Settings
from strata.engine.drive import Driven
from strata.errors import ModelError


@frozen
class EngineSpec:
    """Call `maker`, written `package.module:function`, with these keyword arguments; it returns the engine.

    The arguments are what msgpack can hold: None, booleans, numbers, text, bytes, and lists and mappings of them.
    """

    maker: str
    arguments: Mapping[str, Any] = field(factory=dict)

    def build(self) -> Driven:
        """In the process and on the thread where the engine is to live.  Raises what its maker does."""
        module, _, function = self.maker.partition(":")
        engine: Driven = getattr(import_module(module), function)(**self.arguments)
        return engine


def file_engine(
    model: Path,
    settings: Settings,
    trace: Path | None = None,
    *,
    trace_goes_on: bool = False,
    sha256: str | None = None,
) -> EngineSpec:
    """The engine that serves this model file.  Of the settings only those that an engine needs are sent.

    `sha256`: that the file must have still; None: whatever is there.
    """
    arguments = {
        "model": str(model),
        "engine": attrs.asdict(settings.engine),
        "max_running": settings.scheduler.max_running,
        "trace": None if trace is None else str(trace),
        "trace_goes_on": trace_goes_on,
        "sha256": sha256,
    }
    return EngineSpec("strata.engine.spec:make_file_engine", arguments)


def make_file_engine(
    model: str, engine: Mapping[str, Any], max_running: int, trace: str | None, trace_goes_on: bool, sha256: str | None
) -> Driven:
    """Raises ModelError, ConfigError."""
    # Here and not above: they import all that an engine is made of.
    from strata.engine.from_file import make_engine
    from strata.models.file import WEIGHTS, open_model

    own = EngineSettings(**engine)
    schedule = SchedulerSettings(max_running=max_running, chunk_tokens=own.chunk_tokens)
    settings = Settings(engine=own, scheduler=schedule)
    path = None if trace is None else Path(trace)
    file = open_model(Path(model), WEIGHTS)
    if sha256 is not None and file.sha256 != sha256:
        raise ModelError(f"{model}: it is another file than the one whose vocabulary is served; start the server anew")
    return make_engine(file, settings, path, trace_goes_on=trace_goes_on)
