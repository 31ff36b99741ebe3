"""Products of matrices by NVIDIA's cuBLAS, through ctypes.

Knows the library's calls (https://docs.nvidia.com/cuda/cublas/) and where it may lie; no weight and no position.

cuBLAS chooses how a product is summed by its shape, by where its matrices lie, by the memory that it may work in and by
what other streams do.  Here it has one stream and memory of its own; with those the same call gives the same bits on
the same card (its manual, "Results Reproducibility").  That a row is always asked for by the same call is its user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from strata.errors import DeviceFault, DeviceMissing, OutOfDeviceMemory
from strata.gpu.arrays import DeviceArray
from strata.gpu.device import Device
from strata.gpu.libraries import Wanted, older

CUBLAS: Final = Wanted("libcublas", beside="libcublasLt")

WORK_BYTES: Final = 32 << 20
"""What it may work in: so much is advised for Hopper, and less for others."""

_log: Final = logging.getLogger(__name__)

_OLDEST: Final = 12
"""Of its major versions, which are CUDA's."""
_CALLS: Final = (
    *("cublasCreate_v2", "cublasDestroy_v2", "cublasGetProperty", "cublasGetStatusString", "cublasGemmEx"),
    *("cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSetMathMode", "cublasSetAtomicsMode"),
)
_HINT: Final = "`pip install '.[cublas]'` in the project's folder brings it"

_NO_MEMORY: Final = 3
"""`CUBLAS_STATUS_ALLOC_FAILED`."""
_SUMS_STAY_WIDE: Final = 16
"""Parts of a sum are joined in float32 (`CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`)."""
_NO_ATOMICS: Final = 0
_TRANSPOSED, _AS_IT_LIES = 1, 0
_FLOAT32: Final = 0
"""`CUDA_R_32F`."""
_IN_FLOAT32: Final = 68
"""`CUBLAS_COMPUTE_32F`."""
_ITS_CHOICE: Final = -1
"""`CUBLAS_GEMM_DEFAULT`."""
_NUMBERS: Final[Mapping[str, int]] = {"f32": _FLOAT32, "f16": 2, "bf16": 14}
"""`CUDA_R_16F`, `CUDA_R_16BF`."""

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_GEMM_ARGUMENTS: Final = (
    *(_POINTER, _INT, _INT, _INT, _INT, _INT, _POINTER),
    *(_POINTER, _INT, _INT, _POINTER, _INT, _INT, _POINTER),
    *(_POINTER, _INT, _INT, _INT, _INT),
)


class Library:
    """Loaded; that needs no card.  Raises DeviceMissing where there is none, or one that can't be used."""

    def __init__(self, where: Wanted | Path = CUBLAS, known: int | None = None) -> None:
        """`where`: what to look for, or its file; `known`: the version of CUDA that the driver knows, if anybody
        says."""
        self.calls = _load(where, known)
        missing = [name for name in _CALLS if not hasattr(self.calls, name)]
        if missing:
            raise DeviceMissing(f"cuBLAS is too old, it has no {missing[0]}: {_HINT} anew")
        self.calls.cublasGetStatusString.restype = ctypes.c_char_p
        self.calls.cublasGemmEx.argtypes = _GEMM_ARGUMENTS
        self.version: tuple[int, int] = (self._property(0), self._property(1))
        if self.version[0] < _OLDEST:
            raise DeviceMissing(f"{self} is too old, {_OLDEST}.0 is needed: {_HINT} anew")

    def __str__(self) -> str:
        return "cuBLAS {}.{}".format(*self.version)

    def _property(self, which: int) -> int:
        value = ctypes.c_int()
        self.calls.cublasGetProperty(which, ctypes.byref(value))
        return value.value

    def says(self, status: int) -> str:
        text: bytes = self.calls.cublasGetStatusString(status)
        return text.decode()


def _load(where: Wanted | Path, known: int | None) -> Any:
    try:
        library = where.load(known) if isinstance(where, Wanted) else CUBLAS.open(where)
    except OSError as error:
        raise DeviceMissing(f"cuBLAS can't be loaded ({error}): {_HINT} anew") from error
    if library is None:
        raise DeviceMissing(f"cuBLAS is missing: {_HINT}")
    return library


@frozen
class Numbers:
    """Rows of numbers of one kind on the card, one behind the other; of weights a row is an output's."""

    pointer: int
    rows: int
    columns: int


class Cublas:
    """On a device's stream.  Made, used and closed on the device's thread, and closed before it."""

    def __init__(self, library: Library, device: Device) -> None:
        """Raises DeviceMissing where it doesn't go with the driver or the card, and OutOfDeviceMemory."""
        self.name = str(library)
        self._library = library
        self._handle = ctypes.c_void_p()
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._begin(device)
        try:
            room = device.alloc(WORK_BYTES)
            # In this order: a new stream takes its memory away again.
            self._ask("cublasSetStream_v2", _POINTER(device.stream))
            self._ask("cublasSetWorkspace_v2", _POINTER(room), ctypes.c_size_t(WORK_BYTES))
            self._ask("cublasSetMathMode", _SUMS_STAY_WIDE)
            self._ask("cublasSetAtomicsMode", _NO_ATOMICS)
        except BaseException:
            self.close()
            raise

    def _begin(self, device: Device) -> None:
        if self._library.version[0] > device.cuda[0]:
            known = "{}.{}".format(*device.cuda)
            raise DeviceMissing(
                f"the driver knows CUDA {known} and there is {self.name}: update it, or "
                + older("nvidia-cublas", device.cuda[0])
            )
        status = self._library.calls.cublasCreate_v2(ctypes.byref(self._handle))
        if status == _NO_MEMORY:
            raise OutOfDeviceMemory(f"the device {device.name} has no memory left for {self.name}")
        if status:
            raise DeviceMissing(f"{self.name} doesn't go with this driver and card ({self._library.says(status)})")

    def product(self, x: Numbers, weights: Numbers, number: str, out: DeviceArray, *, add: bool = False) -> None:
        """out = x weights^T, or out += it, summed in float32; `number`: f32, f16 or bf16.  In the order of the stream.

        What goes wrong while it runs is raised by a later call.
        """
        # It knows columns where we have rows, so that what it sees is the transposed of each: out^T = weights x^T.
        kind, start = _NUMBERS[number], self._one if add else self._zero
        shape = weights.rows, x.rows, x.columns
        left = weights.pointer, kind, weights.columns
        right = x.pointer, kind, x.columns
        to = out.pointer, _FLOAT32, out.stride
        factors = ctypes.addressof(self._one), ctypes.addressof(start)
        asked = *shape, factors[0], *left, *right, factors[1], *to
        self._ask("cublasGemmEx", _TRANSPOSED, _AS_IT_LIES, *asked, _IN_FLOAT32, _ITS_CHOICE)

    def __str__(self) -> str:
        return self.name

    def close(self) -> None:
        """A second close does nothing."""
        if self._handle:
            # Of a broken card nothing is asked but to be let go.
            with contextlib.suppress(DeviceFault):
                self._ask("cublasDestroy_v2")
            self._handle = ctypes.c_void_p()

    def _ask(self, call: str, *arguments: Any) -> None:
        status = getattr(self._library.calls, call)(self._handle, *arguments)
        if status:
            kind = OutOfDeviceMemory if status == _NO_MEMORY else DeviceFault
            raise kind(f"the device could not multiply: {call} failed: {self._library.says(status)}")


def open_cublas(products: str, device: Device, find: Callable[..., Library] = Library) -> Cublas | None:
    """As a setting says: `auto`, `own` or `cublas`.  None: our own kernels.  `find`: where it is looked for, for a
    driver that knows CUDA `known`.

    Raises DeviceMissing where it has to be cuBLAS and can't, and OutOfDeviceMemory.
    """
    if products == "own":
        return None
    try:
        return Cublas(find(known=device.cuda[0]), device)
    except DeviceMissing as why:
        if products == "cublas":
            raise
        _log.warning("strata: our own kernels multiply what is read: %s", why)
        return None
