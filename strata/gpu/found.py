"""What of all that a card needs is there, for `strata doctor`.  Knows no model and computes nothing."""

from __future__ import annotations

from attrs import frozen

from strata.errors import DeviceFault, DeviceMissing
from strata.gpu.cubins import Cubins
from strata.gpu.cublas import Cublas, Library
from strata.gpu.device import Device
from strata.gpu.nvrtc import Nvrtc


@frozen
class Found:
    """`problem`: what is missing and how to get it; None where a card can be used.  `no_cublas`: the same of cuBLAS,
    where there is a card to try it on; `no_bf16`: what to do where the card hasn't these."""

    card: str | None
    compiler: str | None
    problem: str | None
    cublas: str | None = None
    no_cublas: str | None = None
    no_bf16: str | None = None


def look() -> Found:
    """Opens the card for a moment, on this thread."""
    compiler = None
    try:
        nvrtc = Nvrtc()
        compiler = f"NVRTC of CUDA {nvrtc.version[0]}.{nvrtc.version[1]}"
        device = Device(Cubins(nvrtc))
        try:
            card = f"{device.name}, {device.arch}, {device.free_memory() >> 20:,} MiB free"
            return Found(card, compiler, None, *_cublas(device), device.lacks("bf16"))
        finally:
            device.close()
    except (DeviceMissing, DeviceFault) as error:
        return Found(None, compiler, str(error))


def _cublas(device: Device) -> tuple[str | None, str | None]:
    try:
        cublas = Cublas(Library(), device)
    except (DeviceMissing, DeviceFault) as error:
        return None, str(error)
    cublas.close()
    return cublas.name, None
