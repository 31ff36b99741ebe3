"""The card as this program sees it: one context, one thread, one stream, and another for copies beside it.

A room of its own because nobody else knows PyCUDA: others have pointers, launches and copies in
the order of the stream.
Knows no weight and no page.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.errors import DeviceFault, DeviceMissing, OutOfDeviceMemory
from strata.gpu.driver import begin, load_driver, no_card
from strata.gpu.graph import Graph, Graphs
from strata.gpu.libraries import older
from strata.gpu.table import Kernel

_MIB: Final = 2**20
_OLDEST: Final = 12
"""CUDA's version that the driver must know at least."""
_LEAST: Final = 7, 5
"""Compute capability: older cards have no such tensor cores, and NVRTC knows them no more."""
_LEAST_OF_BRAIN: Final = 8, 0

_log: Final = logging.getLogger(__name__)


class Cubins(Protocol):
    """Where kernels come from."""

    @property
    def major(self) -> int:
        """The version of CUDA that they are for; no older driver loads them."""
        ...

    def __call__(self, file: str, arch: str, definitions: Mapping[str, str], *, anew: bool = False) -> Path:
        """From a kernel file, an architecture (`sm_90`) and definitions to a file that the driver loads.

        `anew`: what was kept is no good.
        """
        ...


@frozen
class Launcher:
    """A kernel that was loaded: what `launch` takes."""

    kernel: Kernel
    _function: Any


class Device:
    """Opened on the thread that uses it and closes it.  All that was allocated lasts until then.

    Errors of the driver become ours: DeviceMissing where there is no usable card, OutOfDeviceMemory, and DeviceFault
    for all else; after one of these nothing works any more but `close`.
    """

    def __init__(self, cubins: Cubins) -> None:
        self._driver = load_driver()
        self._cubins = cubins
        self._allocations: list[Any] = []
        self._pinned: list[Any] = []
        self._launchers: dict[tuple[Kernel, tuple[tuple[str, str], ...]], Launcher] = {}
        self._modules: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._events: list[Any] = []
        self._unused: list[int] = []
        self._closed = False
        self.cuda: tuple[int, int] = begin(self._driver)
        """CUDA's version that the driver knows."""
        self._check_version(*self.cuda)
        card = self._first_card()
        self.name: str = card.name()
        self.capability: tuple[int, int] = card.compute_capability()
        self.arch: str = "sm_{}{}".format(*self.capability)
        self._context = self._context_of(card)
        self._context.push()
        try:
            self._stream = self._try(self._driver.Stream, _NON_BLOCKING, what="make a stream")
            self._beside = self._try(self._driver.Stream, _NON_BLOCKING, what="make a stream")
            flags = self._driver.event_flags.DISABLE_TIMING
            self._reached = self._try(self._driver.Event, flags, what="make an event")
            self._graphs = Graphs(self._stream.handle)
        except BaseException:
            # Where one is left PyCUDA ends the process.
            self._stream = self._beside = None
            self._leave_context()
            raise
        self._kept: set[Graph] = set()

    def _first_card(self) -> Any:
        try:
            return self._driver.Device(0)
        except self._driver.Error as error:
            raise no_card(error) from error

    def _check_version(self, major: int, minor: int) -> None:
        says = f"the driver knows CUDA {major}.{minor} and"
        if major < _OLDEST:
            raise DeviceMissing(f"{says} {_OLDEST}.0 is needed: update it")
        if major < self._cubins.major:
            raise DeviceMissing(
                f"{says} NVRTC is of CUDA {self._cubins.major}: update it, or {older('nvidia-cuda-nvrtc', major)}"
            )

    def _context_of(self, card: Any) -> Any:
        if self.capability < _LEAST:
            needed = "{}.{}".format(*_LEAST)
            raise DeviceMissing(f"the card {self.name} ({self.arch}) is too old: compute capability {needed} is needed")
        try:
            return self._try(card.retain_primary_context, what="open a context")
        except OutOfDeviceMemory:
            raise
        except DeviceFault as error:
            raise DeviceMissing(f"the card {self.name} can't be used ({error.__cause__}): see `nvidia-smi`") from error

    def _leave_context(self) -> None:
        self._context.pop()
        self._context.detach()

    def _try(self, call: Callable[..., Any], *arguments: Any, what: str) -> Any:
        try:
            return call(*arguments)
        except self._driver.MemoryError as error:
            raise OutOfDeviceMemory(f"the device {self.name} has no memory left to {what}") from error
        except self._driver.Error as error:
            raise DeviceFault(f"the device {self.name} could not {what}: {error}") from error

    def lacks(self, numbers: str) -> str | None:
        """What to do where it can't multiply these: f32, f16 or bf16."""
        if numbers == "bf16" and self.capability < _LEAST_OF_BRAIN:
            return f"{self.name} ({self.arch}) has no bf16: choose f16 or f32"
        return None

    @property
    def stream(self) -> int:
        """The stream's handle, for a library that is told to work on it."""
        return int(self._stream.handle)

    # -- memory ---------------------------------------------------------------------------------------------------

    def free_memory(self) -> int:
        free, _total = self._try(self._driver.mem_get_info, what="say how much memory is free")
        return int(free)

    def alloc(self, nbytes: int) -> int:
        """A pointer to memory with anything in it.  Raises OutOfDeviceMemory, with the sizes."""
        free = self.free_memory()
        what = f"allocate {nbytes / _MIB:,.1f} MiB ({free / _MIB:,.1f} MiB are free)"
        allocation = self._try(self._driver.mem_alloc, max(nbytes, 1), what=what)
        self._allocations.append(allocation)
        return int(allocation)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Memory of the host that copies can be made from and to while both sides go on; not after `close`."""
        what = f"pin {nbytes / _MIB:,.1f} MiB of the host's memory"
        array: NDArray[np.uint8] = self._try(self._driver.pagelocked_empty, nbytes, np.uint8, what=what)
        self._pinned.append(array.base)
        return array

    def upload(self, pointer: int, pinned: NDArray[Any]) -> None:
        """From pinned memory, in the order of the stream: it must stay as it is until an event says so."""
        self._try(self._driver.memcpy_htod_async, pointer, pinned, self._stream, what="copy to the card")

    def store(self, pointer: int, array: NDArray[Any]) -> None:
        """From any memory (C order), after all that was told before; returns when it is there."""
        # A copy without a stream may return before: then it is on one that ours doesn't wait for.
        self._try(self._driver.memcpy_htod_async, pointer, array, self._stream, what="copy to the card")
        self.synchronize()

    def fetch(self, pointer: int, pinned: NDArray[Any]) -> None:
        """To pinned memory, in the order of the stream."""
        self._try(self._driver.memcpy_dtoh_async, pinned, pointer, self._stream, what="copy from the card")

    def upload_beside(self, pointer: int, pinned: NDArray[Any]) -> None:
        """From pinned memory, after all that was told before, and beside what comes later until there is a `meet`."""
        self._follow(self._beside, self._stream)
        self._try(self._driver.memcpy_htod_async, pointer, pinned, self._beside, what="copy to the card")

    def fetch_beside(self, pointer: int, pinned: NDArray[Any]) -> None:
        """To pinned memory, likewise."""
        self._follow(self._beside, self._stream)
        self._try(self._driver.memcpy_dtoh_async, pinned, pointer, self._beside, what="copy from the card")

    def meet(self) -> None:
        """What is told from now on comes after all copies that were told to go beside."""
        self._follow(self._stream, self._beside)

    def _follow(self, later: Any, earlier: Any) -> None:
        # Who waits for an event waits for what it stood for then, so that one is enough for all.
        self._try(self._reached.record, earlier, what="record an event")
        self._try(later.wait_for_event, self._reached, what="wait for an event")

    def download(self, pointer: int, out: NDArray[Any]) -> None:
        """To any memory (C order); returns when it is there, after all that was told before."""
        self.fetch(pointer, out)
        self.synchronize()

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """On the card, in the order of the stream."""
        self._try(self._driver.memcpy_dtod_async, to, source, nbytes, self._stream, what="copy on the card")

    def zero(self, pointer: int, nbytes: int) -> None:
        self._try(self._driver.memset_d8_async, pointer, 0, nbytes, self._stream, what="clear memory")

    # -- kernels --------------------------------------------------------------------------------------------------

    def load(self, kernel: Kernel, **definitions: str) -> Launcher:
        """Compile and load its file with these definitions, once.  Raises DeviceMissing, DeviceFault."""
        key = kernel, tuple(sorted(definitions.items()))
        if key not in self._launchers:
            module = self._module(kernel.file, key[1])
            function = self._try(module.get_function, kernel.name, what=f"find the kernel {kernel.name}")
            self._launchers[key] = Launcher(kernel, function.prepare(kernel.arguments))
        return self._launchers[key]

    def _module(self, file: str, definitions: tuple[tuple[str, str], ...]) -> Any:
        key = file, definitions
        if key not in self._modules:
            find = partial(self._cubins, file, self.arch, dict(definitions))
            load = partial(self._try, self._driver.module_from_file, what=f"load the kernels of {file}")
            cubin = find()
            try:
                self._modules[key] = load(str(cubin))
            except DeviceFault as error:
                # What is kept may be damaged, or another's.
                _log.warning("strata: %s; they are compiled anew", error)
                self._modules[key] = load(str(find(anew=True)))
        return self._modules[key]

    def launch(self, launcher: Launcher, grid: tuple[int, ...], *arguments: int | float) -> None:
        """In the order of the stream; what goes wrong while it runs is raised by a later call."""
        kernel, function = launcher.kernel, launcher._function
        call = function.prepared_async_call
        self._try(call, grid, (kernel.block, 1, 1), self._stream, *arguments, what=f"run {kernel.name}")

    def capture(self, tell: Callable[[], None]) -> Graph:
        """What `tell` launches is not done, but taken down: see graph.py.  The kernels must have been loaded before."""
        graph = self._graphs.capture(tell)
        self._kept.add(graph)
        return graph

    def replay(self, graph: Graph) -> None:
        """In the order of the stream."""
        self._graphs.replay(graph)

    def forget(self, graph: Graph) -> None:
        """Give back what it takes."""
        self._kept.discard(graph)
        self._graphs.forget(graph)

    # -- order ----------------------------------------------------------------------------------------------------

    def record(self) -> int:
        """Marks where the stream is now; the mark is given to `wait`, once."""
        if not self._unused:
            flags = self._driver.event_flags.DISABLE_TIMING
            self._events.append(self._try(self._driver.Event, flags, what="make an event"))
            self._unused.append(len(self._events) - 1)
        mark = self._unused.pop()
        self._try(self._events[mark].record, self._stream, what="record an event")
        return mark

    def wait(self, mark: int) -> None:
        """Until the card has got that far."""
        self._try(self._events[mark].synchronize, what="compute")
        self._unused.append(mark)

    def synchronize(self) -> None:
        self._try(self._stream.synchronize, what="compute")

    def close(self) -> None:
        """Give everything back; a second close does nothing.  Of a broken card nothing is asked but to be let go."""
        if self._closed:
            return
        self._closed = True
        # All of it here: PyCUDA would free what is left when its turn comes, in a context that is no more.
        graphs = [partial(self._graphs.forget, graph) for graph in self._kept]
        memory = [held.free for held in self._allocations + self._pinned]
        for give_back in [self._stream.synchronize, self._beside.synchronize, *graphs, *memory]:
            with contextlib.suppress(self._driver.Error, DeviceFault):
                give_back()
        self._kept.clear()
        self._allocations.clear()
        self._pinned.clear()
        self._launchers.clear()
        self._modules.clear()
        self._events.clear()
        self._stream = self._beside = self._reached = None
        self._leave_context()


_NON_BLOCKING: Final = 1
"""A stream that does not wait for the default one (`CU_STREAM_NON_BLOCKING`)."""
