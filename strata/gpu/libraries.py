"""NVIDIA's libraries, wherever they lie: the system's, and those of wheels.  Knows no call of theirs."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from pathlib import Path
from typing import Final

from attrs import frozen

_VERSIONS: Final = (12, 13)
"""Of CUDA, that a library of the system's is asked for by."""

_FIRST_WITHOUT_SUFFIX: Final = 13
"""Of CUDA's versions; a wheel for an older one has another name."""


def older(wheel: str, major: int) -> str:
    """What to do where the driver knows CUDA `major` alone and all libraries that are there are newer."""
    if major < _FIRST_WITHOUT_SUFFIX:
        return f"`pip install {wheel}-cu{major}`"
    return f"`pip install {wheel}=={major}.*`"


@frozen
class Wanted:
    """`name`: as `libnvrtc`; `beside`: what it asks for by name, and the loader doesn't look beside it."""

    name: str
    beside: str

    def load(self, known: int | None = None) -> ctypes.CDLL | None:
        """The newest that a driver can use that knows this version of CUDA; None: whichever.

        Where there is none, the newest of all, which is its user's to refuse; None: it is nowhere.  Raises OSError for
        a wheel's that can't be loaded.
        """
        wheels = self.in_wheels()
        for version in sorted({*_VERSIONS, *wheels}, key=lambda one: (known is None or one <= known, one))[::-1]:
            with contextlib.suppress(OSError):
                return ctypes.CDLL(f"{self.name}.so.{version}")
            if version in wheels:
                return self.open(wheels[version])
        return None

    def in_wheels(self) -> dict[int, Path]:
        """By CUDA's version, which their files' names end with; the newest first."""
        spec = importlib.util.find_spec("nvidia")
        folders = [] if spec is None else spec.submodule_search_locations or []
        found = [path for folder in folders for path in Path(folder).glob(f"*/lib/{self.name}.so.[0-9]*")]
        versions = {int(path.name.split(".")[2]): path for path in sorted(found)}
        return dict(sorted(versions.items(), reverse=True))

    def open(self, path: Path) -> ctypes.CDLL:
        """This one.  Raises OSError."""
        for other in path.parent.glob(f"{self.beside}.so.*"):
            ctypes.CDLL(str(other))
        return ctypes.CDLL(str(path))
