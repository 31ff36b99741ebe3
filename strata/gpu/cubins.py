"""The kernels as files that a driver loads: compiled when they are first asked for, and kept.

Knows where the `.cu` files lie and where what was made of them is kept; no driver and no argument.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import platformdirs

from strata.errors import ConfigError
from strata.gpu.nvrtc import Nvrtc

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

    def __call__(self, file: str, arch: str, definitions: Mapping[str, str]) -> Path:
        source = (self._texts / file).read_text()
        options = [f"-D{name}={value}" for name, value in sorted(definitions.items())]
        parts = [source, *self._headers, *self._headers.values(), repr(self._nvrtc.version), arch, *options]
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
        path = self._folder / f"{Path(file).stem}-{arch}-{key}.cubin"
        if not path.exists():
            cubin, _log = self._nvrtc.compile(source, file, arch, headers=self._headers, options=options)
            self._keep(path, cubin)
        return path

    def _keep(self, path: Path, cubin: bytes) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_bytes(cubin)
            part.replace(path)
        except OSError as error:
            raise ConfigError("device", f"{path} can't be written ({error.strerror or error})") from error
