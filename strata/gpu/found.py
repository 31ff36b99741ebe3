"""What of all that a card needs is there, for `strata doctor`.  Knows no model and computes nothing."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from strata.errors import DeviceFault, DeviceMissing
from strata.gpu.cubins import Cubins
from strata.gpu.cublas import CUBLAS, Cublas, Library
from strata.gpu.device import Device
from strata.gpu.driver import begin, load_driver
from strata.gpu.libraries import Wanted
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


def look(compiler: Path | None = None, cublas: Path | None = None) -> Found:
    """Opens the card for a moment, on this thread.  The libraries' files; None: those that a start would find."""
    version = None
    known, problem = _known()
    try:
        nvrtc = Nvrtc(compiler, known)
        version = f"NVRTC of CUDA {nvrtc.version[0]}.{nvrtc.version[1]}"
        if problem is not None:
            raise problem
        device = Device(Cubins(nvrtc))
        try:
            card = f"{device.name}, {device.arch}, {device.free_memory() >> 20:,} MiB free"
            return Found(card, version, None, *_cublas(device, cublas or CUBLAS), device.lacks("bf16"))
        finally:
            device.close()
    except (DeviceMissing, DeviceFault) as error:
        # What a start says, which asks for the driver first.
        return Found(None, version, str(problem or error))


def _known() -> tuple[int | None, DeviceMissing | None]:
    """The version of CUDA that the driver knows, or why that can't be asked: a compiler is told of all the same."""
    try:
        return begin(load_driver())[0], None
    except DeviceMissing as error:
        return None, error


def _cublas(device: Device, where: Wanted | Path) -> tuple[str | None, str | None]:
    try:
        cublas = Cublas(Library(where, device.cuda[0]), device)
    except (DeviceMissing, DeviceFault) as error:
        return None, str(error)
    cublas.close()
    return cublas.name, None
