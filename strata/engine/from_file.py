"""From a model file and settings to an engine: what the host's thread calls to build it.

A room of its own because only here do a device, an architecture and the engine meet.  Knows no thread and no actor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from strata.config import Device, EngineSettings, Settings
from strata.engine.budget import plan
from strata.engine.engine import Engine
from strata.engine.trace import Trace
from strata.errors import ConfigError, NoMemoryToStart, OutOfDeviceMemory
from strata.models.file import ModelFile
from strata.models.ops import Ops

UNKNOWN_MEMORY: Final = 4 << 30
"""Bytes that are taken to be free where nobody says; a quarter of it makes a useful number of pages."""


def make_engine(
    file: ModelFile, settings: Settings, trace: Path | None = None, *, trace_goes_on: bool = False
) -> Engine:
    """Load the weights and take all memory, on the calling thread.  `trace_goes_on`: behind an earlier engine's.

    Raises ModelError, ConfigError, DeviceMissing, NoMemoryToStart.
    """
    try:
        return _make_engine(file, settings, partial(_open_trace, trace, trace_goes_on))
    except (MemoryError, OutOfDeviceMemory) as error:
        # Whatever was said to be free: another program took it, or the system gives less than it says.
        raise NoMemoryToStart(
            f"{file.path}: there is not enough memory to start ({str(error) or 'the system gives none'}); "
            "free some, use a smaller model, or set a smaller context, kv_mib or arena_mib"
        ) from error


def _make_engine(file: ModelFile, settings: Settings, open_trace: Callable[[], Trace | None]) -> Engine:
    # Here and not above: an engine that isn't built on a file needs no device.
    from strata.models.make import make_model

    ops = open_device(settings.engine)
    model = make_model(file, ops)
    try:
        budget = plan(
            model,
            settings.engine,
            max_running=settings.scheduler.max_running,
            free_bytes=free_bytes(ops, settings.engine),
            host_bytes=_host_bytes(settings.engine),
        )
        engine = Engine(model, settings.engine, budget, trace=open_trace())
        if settings.engine.device is Device.CUDA:
            # Its kernels are compiled and loaded as they are first needed: now, and not in somebody's request.
            engine.rehearse()
        return engine
    except BaseException:
        # Its threads outlive it otherwise.
        model.close()
        raise


def open_device(settings: EngineSettings) -> Ops:
    """The one that the settings name, to be closed.  Raises ConfigError, DeviceMissing."""
    if settings.device is Device.CUDA:
        from strata.gpu.cublas import open_cublas
        from strata.gpu.ops import GpuOps

        return GpuOps(activations=settings.activations, open_blas=partial(open_cublas, settings.products))
    from strata.cpu.device import open_cpu

    return open_cpu(settings.threads)


def free_bytes(ops: Ops, settings: EngineSettings) -> int:
    """What the device has left."""
    free = ops.available_bytes()
    return free or UNKNOWN_MEMORY if settings.device is Device.CPU else free


def _host_bytes(settings: EngineSettings) -> int | None:
    """What is free for the arena, where that is other memory than the device's."""
    if settings.device is Device.CPU:
        return None
    from strata.cpu import machine

    return machine.available_bytes() or UNKNOWN_MEMORY


def _open_trace(path: Path | None, goes_on: bool) -> Trace | None:
    if path is None:
        return None
    try:
        return Trace(path, goes_on=goes_on)
    except OSError as error:
        raise ConfigError("trace", f"{path} can't be written ({error.strerror or error})") from error
