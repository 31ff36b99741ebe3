"""The emulated libraries, built by g++ where they aren't yet, and loaded before anybody looks for real ones."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

FAKE = Path(__file__).parent / "fake"
BUILT = Path(__file__).parents[2] / "build" / "gpu"

DRIVER, COMPILER, CUBLAS = "libcuda.so.1", "libnvrtc.so.13", "libcublas.so.13"


def missing(*, emulated: bool = True) -> str | None:
    """What these tests need and this environment hasn't, if anything."""
    if importlib.util.find_spec("pycuda") is None:
        return "PyCUDA is not installed"
    if not emulated:
        return None
    if shutil.which("g++") is None:
        return "there is no g++"
    return None if cuda_include() else "NVIDIA's headers are not installed"


def cuda_include() -> Path | None:
    """The folder of `cuda.h`, from a wheel of NVIDIA's."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else spec.submodule_search_locations or []
    found = [path.parent for folder in folders for path in Path(folder).glob("*/include/cuda.h")]
    return found[0] if found else None


def fakes(*flags: str) -> Path:
    """A folder with all libraries, built with these flags (a sanitizer's), and room for a cache of kernels."""
    texts = [path.read_bytes() for path in sorted(FAKE.iterdir())]
    key = hashlib.sha256(b"\0".join([*texts, " ".join(flags).encode(), str(FAKE).encode()])).hexdigest()[:16]
    folder = BUILT / key
    if not (folder / COMPILER).exists():
        folder.mkdir(parents=True, exist_ok=True)
        header = [f"-isystem{cuda_include()}"]
        _build(folder / DRIVER, ["driver.cpp", "unused.cpp"], *header, *flags)
        # It is nearly all that this does: with the compiler's help it takes a tenth of the time.
        _build(folder / CUBLAS, ["cublas.cpp"], *header, *flags, "-O3", "-mavx2", f"-L{folder}", f"-l:{DRIVER}")
        _build(folder / COMPILER, ["nvrtc.cpp"], f'-DEMU_HEADER="{FAKE / "emu.h"}"')
    return folder


def _build(library: Path, sources: list[str], *flags: str) -> None:
    part = library.with_name(f".{library.name}.{os.getpid()}.part")
    command = ["g++", "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{library.name}"]
    # What is linked with comes last.
    subprocess.run([*command, *(str(FAKE / name) for name in sources), *flags, "-o", str(part), "-ldl"], check=True)
    part.replace(library)


def load(folder: Path) -> ctypes.CDLL:
    """The driver, which this process finds from now on: a library that is there is known by its name.

    The others are not found so: whoever looked at the machine before may have loaded NVIDIA's, and the first of a name
    stays.  Name their files instead.
    """
    ctypes.CDLL(str(folder / DRIVER), mode=ctypes.RTLD_GLOBAL)
    driver = ctypes.CDLL(DRIVER)
    if not hasattr(driver, "fakecuda_heal"):
        raise RuntimeError("this process had loaded a real driver before the emulated one")
    return driver


def environ(folder: Path) -> dict[str, str]:
    """What makes another process find them, and keeps its cubins apart."""
    return {"LD_LIBRARY_PATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


def python(code: str, environ: dict[str, str]) -> str:
    """What another process, without this one's driver, says."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    return done.stdout + done.stderr


def cubin_folder(folder: Path) -> Path:
    """Where such a process keeps them."""
    return folder / "cache" / "strata" / "cubins"
