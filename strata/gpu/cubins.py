"""The kernels as files that a driver loads: compiled when they are first asked for, and kept.

Knows where the `.cu` files lie and where what was made of them is kept; no driver and no argument.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import platformdirs

from strata.gpu.nvrtc import Nvrtc

_log: Final = logging.getLogger(__name__)

_BESIDE: Final = Path(__file__).parent / "cuda"
_IN_THE_TREE: Final = Path(__file__).parents[2] / "cuda"


def sources() -> Path:
    """The folder of the `.cu` files: in an installed package beside this file, else at the top of the tree."""
    return _BESIDE if _BESIDE.is_dir() else _IN_THE_TREE


def cubin_cache() -> Path:
    return platformdirs.user_cache_path("strata") / "cubins"


class Cubins:
    """Called with a kernel file's name, an architecture and definitions, it returns the path of a cubin.

    Kept by all that a cubin follows from: all the text, the compiler's version, the architecture, the definitions.
    """

    def __init__(self, nvrtc: Nvrtc, folder: Path | None = None, texts: Path | None = None) -> None:
        """`folder`: where they are kept; `texts`: the folder of the `.cu` files.  None: the usual ones."""
        self._nvrtc = nvrtc
        self._folder = cubin_cache() if folder is None else folder
        self._texts = sources() if texts is None else texts
        self._headers = {path.name: path.read_text() for path in sorted(self._texts.glob("*.cuh"))}

    @property
    def major(self) -> int:
        return self._nvrtc.version[0]

    def __call__(self, file: str, arch: str, definitions: Mapping[str, str], *, anew: bool = False) -> Path:
        """Raises DeviceMissing where the compiler doesn't know the card, DeviceFault where it complains."""
        source = (self._texts / file).read_text()
        options = [f"-D{name}={value}" for name, value in sorted(definitions.items())]
        parts = [source, *self._headers, *self._headers.values(), repr(self._nvrtc.version), arch, *options]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        name = f"{Path(file).stem}-{arch}-{key}.cubin"
        if anew or not (self._folder / name).exists():
            cubin, _ = self._nvrtc.compile(source, file, arch, headers=self._headers, options=options)
            self._keep(name, cubin)
        return self._folder / name

    def _keep(self, name: str, cubin: bytes) -> None:
        try:
            _write(self._folder / name, cubin)
        except OSError as error:
            why = error.strerror or error
            _log.warning("strata: %s can't be written (%s): kernels are compiled at each start", self._folder, why)
            self._folder = Path(tempfile.mkdtemp(prefix="strata-cubins-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            _write(self._folder / name, cubin)


def _write(path: Path, cubin: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(cubin)
    part.replace(path)
