"""From `.cu` text to a cubin, by NVRTC through ctypes: no toolkit and no GPU are needed.

Knows the library's calls (https://docs.nvidia.com/cuda/nvrtc/); no kernel and no cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from strata.errors import DeviceFault, DeviceMissing
from strata.gpu.libraries import Wanted

_INVALID_OPTION: Final = 5
"""`NVRTC_ERROR_INVALID_OPTION`: all are ours and known since long, but for the architecture."""

NVRTC: Final = Wanted("libnvrtc", beside="libnvrtc-builtins")


class Nvrtc:
    """The library, loaded.  Raises DeviceMissing where there is none."""

    def __init__(self, path: Path | None = None, known: int | None = None) -> None:
        """`path`: this one; None: the newest for a driver that knows this version of CUDA (None: whichever)."""
        self._library = _load(known) if path is None else NVRTC.open(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._ask("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version: tuple[int, int] = (major.value, minor.value)

    def compile(
        self, source: str, name: str, arch: str, *, headers: Mapping[str, str], options: Sequence[str] = ()
    ) -> tuple[bytes, str]:
        """A cubin for `arch` (`sm_90`), and what the compiler said.

        Raises DeviceFault with its words, and DeviceMissing where it doesn't know such cards.
        """
        program = ctypes.c_void_p()
        texts = _strings(list(headers.values()))
        names = _strings(list(headers))
        self._ask(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            len(headers),
            texts,
            names,
        )
        try:
            wanted = [f"--gpu-architecture={arch}", "--std=c++17", *options]
            result = self._library.nvrtcCompileProgram(program, len(wanted), _strings(wanted))
            log = self._get(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if result == _INVALID_OPTION:
                raise DeviceMissing(
                    f"NVRTC of CUDA {self.version[0]}.{self.version[1]} doesn't know cards of {arch}: "
                    "`pip install --upgrade nvidia-cuda-nvrtc`, or another of that version of CUDA"
                )
            if result:
                raise DeviceFault(f"{name} can't be compiled for {arch}: {self._says(result)}\n{log}")
            return self._get(program, "CUBIN"), log
        finally:
            self._ask("nvrtcDestroyProgram", ctypes.byref(program))

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._ask(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        self._ask(f"nvrtcGet{what}", program, out)
        return out.raw

    def _ask(self, function: str, *arguments: Any) -> None:
        result = getattr(self._library, function)(*arguments)
        if result:
            raise DeviceFault(f"{function} failed: {self._says(result)}")

    def _says(self, result: int) -> str:
        text: bytes = self._library.nvrtcGetErrorString(result)
        return text.decode()


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])


def _load(known: int | None) -> ctypes.CDLL:
    try:
        library = NVRTC.load(known)
    except OSError as error:
        raise DeviceMissing(f"NVRTC can't be loaded ({error}): `pip install '.[cuda]'` anew") from error
    if library is None:
        raise DeviceMissing("NVRTC, which compiles the kernels, is missing: `pip install '.[cuda]'`")
    return library
