"""NVIDIA's libraries, wherever they lie: the system's, else those of a wheel.  Knows no call of theirs."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import frozen

_VERSIONS: Final = ("13", "12")
"""Of CUDA, that a library of the system's is asked for by, the newest first."""

_FIRST_WITHOUT_SUFFIX: Final = 13
"""Of CUDA's versions; a wheel for an older one has another name."""


def older(wheel: str, major: int) -> str:
    """What to do where the driver knows CUDA `major` alone and the wheel's library is newer."""
    if major < _FIRST_WITHOUT_SUFFIX:
        return f"`pip uninstall {wheel}` and `pip install {wheel}-cu{major}`"
    return f"`pip install {wheel}=={major}.*`"


@frozen
class Wanted:
    """`name`: as `libnvrtc`; `beside`: what it asks for by name, and the loader doesn't look beside it."""

    name: str
    beside: str

    def load(self) -> ctypes.CDLL | None:
        """None: it is nowhere."""
        for version in _VERSIONS:
            try:
                return ctypes.CDLL(f"{self.name}.so.{version}")
            except OSError:
                continue
        path = next(self.in_wheels(), None)
        return None if path is None else self.open(path)

    def in_wheels(self) -> Iterator[Path]:
        """The newest first."""
        spec = importlib.util.find_spec("nvidia")
        folders = [] if spec is None else spec.submodule_search_locations or []
        found = [path for folder in folders for path in Path(folder).glob(f"*/lib/{self.name}.so.*")]
        yield from sorted(found, key=lambda path: path.name, reverse=True)

    def open(self, path: Path) -> ctypes.CDLL:
        """This one.  Raises OSError."""
        for other in path.parent.glob(f"{self.beside}.so.*"):
            ctypes.CDLL(str(other))
        return ctypes.CDLL(str(path))
