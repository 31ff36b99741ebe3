"""Which device an engine with these settings computes on, for people.  Asks the device itself, and measures nothing."""

from __future__ import annotations

from strata.config import EngineSettings
from strata.engine.from_file import open_device


def device_name(settings: EngineSettings) -> str:
    """Kernels and threads of a processor, or the card.  Raises ConfigError, DeviceMissing."""
    ops = open_device(settings)
    try:
        return ops.device
    finally:
        ops.close()
