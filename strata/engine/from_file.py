"""From a model file and settings to an engine: what the host's thread calls to build it.

A room of its own because only here do a device, an architecture and the engine meet.  Knows no thread and no actor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strata.config import Settings
from strata.engine.budget import plan
from strata.engine.engine import Engine
from strata.engine.trace import Trace
from strata.errors import ConfigError, ModelError
from strata.models.file import ModelFile

UNKNOWN_MEMORY: Final = 4 << 30
"""Bytes that are taken to be free where nobody says; a quarter of it makes a useful number of pages."""


def make_engine(file: ModelFile, settings: Settings, trace: Path | None = None) -> Engine:
    """Load the weights and take all memory, on the calling thread.  Raises ModelError, ConfigError."""
    try:
        return _make_engine(file, settings, trace)
    except MemoryError as error:
        # Whatever was said to be free: another program took it, or the system gives less than it says.
        raise ModelError(
            f"{file.path}: there is not enough memory to start ({str(error) or 'the system gives none'}); "
            "free some, use a smaller model, or set a smaller context, kv_mib or arena_mib"
        ) from error


def _make_engine(file: ModelFile, settings: Settings, trace: Path | None) -> Engine:
    # Here and not above: an engine that isn't built on a file needs no device.
    from strata.cpu.device import open_cpu
    from strata.models.make import make_model

    ops = open_cpu(settings.engine.threads)
    model = make_model(file, ops)
    try:
        budget = plan(
            model,
            settings.engine,
            max_running=settings.scheduler.max_running,
            free_bytes=ops.available_bytes() or UNKNOWN_MEMORY,
        )
        return Engine(model, settings.engine, budget, trace=None if trace is None else _open_trace(trace))
    except BaseException:
        # Its threads outlive it otherwise.
        model.close()
        raise


def _open_trace(path: Path) -> Trace:
    try:
        return Trace(path)
    except OSError as error:
        raise ConfigError("trace", f"{path} can't be written ({error.strerror or error})") from error
