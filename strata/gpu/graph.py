"""Launches that a stream takes down instead of doing them, to be done all at once, as often as wanted.

A room of its own because PyCUDA doesn't have these calls of the driver
(https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html).  Knows no kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

from strata.errors import DeviceFault, OutOfDeviceMemory

_NO_MEMORY: Final = 2
_THREAD_LOCAL: Final = 1
"""What other threads do with the driver meanwhile is not our concern (`CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`)."""


class Graph:
    """Work that was taken down.  Its arguments are those that were given; what they point at is read when it runs."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle: ctypes.c_void_p | None = handle


class Graphs:
    """Of one stream, by its handle.  Raises DeviceFault, OutOfDeviceMemory."""

    def __init__(self, stream: int) -> None:
        # The one that PyCUDA has loaded.
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._stream = ctypes.c_void_p(stream)

    def capture(self, tell: Callable[[], None]) -> Graph:
        """What `tell` launches.  Nothing else may be asked of the driver in it: no memory, no kernel's first use."""
        self._ask("cuStreamBeginCapture_v2", self._stream, _THREAD_LOCAL)
        try:
            tell()
        finally:
            # Also where it failed: the stream takes everything down until it is told to end.
            graph = ctypes.c_void_p()
            self._ask("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        made = ctypes.c_void_p()
        try:
            self._ask("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))
        finally:
            self._ask("cuGraphDestroy", graph)
        return Graph(made)

    def replay(self, graph: Graph) -> None:
        """In the order of the stream."""
        self._ask("cuGraphLaunch", graph._handle, self._stream)

    def forget(self, graph: Graph) -> None:
        """What of it is under way is done all the same.  A second time does nothing."""
        handle, graph._handle = graph._handle, None
        if handle is not None:
            self._ask("cuGraphExecDestroy", handle)

    def _ask(self, function: str, *arguments: object) -> None:
        result = getattr(self._driver, function)(*arguments)
        if result:
            kind = OutOfDeviceMemory if result == _NO_MEMORY else DeviceFault
            raise kind(f"the device could not replay launches: {function} failed: {self._says(result)}")

    def _says(self, result: int) -> str:
        text = ctypes.c_char_p()
        self._driver.cuGetErrorString(result, ctypes.byref(text))
        return f"error {result}" if text.value is None else text.value.decode()
