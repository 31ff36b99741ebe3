"""What of all that a card needs is there, for `strata doctor`.  Knows no model and computes nothing."""

from __future__ import annotations

from attrs import frozen

from strata.errors import DeviceFault, DeviceMissing
from strata.gpu.cubins import Cubins
from strata.gpu.device import Device
from strata.gpu.nvrtc import Nvrtc


@frozen
class Found:
    """`problem`: what is missing and how to get it; None where a card can be used."""

    card: str | None
    compiler: str | None
    problem: str | None


def look() -> Found:
    """Opens the card for a moment, on this thread."""
    compiler = None
    try:
        nvrtc = Nvrtc()
        compiler = f"NVRTC of CUDA {nvrtc.version[0]}.{nvrtc.version[1]}"
        device = Device(Cubins(nvrtc))
        try:
            card = f"{device.name}, {device.arch}, {device.free_memory() >> 20:,} MiB free"
        finally:
            device.close()
    except (DeviceMissing, DeviceFault) as error:
        return Found(None, compiler, str(error))
    return Found(card, compiler, None)
