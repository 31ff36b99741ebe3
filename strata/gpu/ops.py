"""The card's operations under one roof, and the memory that they use.  Knows no architecture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.draws import Draw
from strata.errors import ConfigError
from strata.gpu import weights
from strata.gpu.arrays import DeviceArray
from strata.gpu.attention import PARTS_BYTES, Attention, Rows, Sight, check_width
from strata.gpu.cache import STORED, PagedCache, Shape, page_nbytes
from strata.gpu.cubins import Cubins
from strata.gpu.cublas import Cublas
from strata.gpu.device import Device
from strata.gpu.drawing import Drawing
from strata.gpu.driver import begin, load_driver
from strata.gpu.lead import Lead
from strata.gpu.lone import LoneRows
from strata.gpu.nvrtc import Nvrtc
from strata.gpu.places import Place
from strata.gpu.products import FEW, MANY_OF, RowwiseKernels
from strata.gpu.roof import Roof
from strata.gpu.staging import Staging
from strata.gpu.steps import RecordedStep, Replaying, bytes_of
from strata.gpu.table import EMBED
from strata.gpu.weights import Activation, GatedMatrix, Matrix, Stored
from strata.gpu.whole_tiles import USUAL, Sizes, WholeTiles

_log: Final = logging.getLogger(__name__)

RESERVE: Final = 256 << 20
"""Bytes of the card that are left alone, for what the driver itself takes as kernels are loaded."""

_SLICE_ROWS: Final = 512
"""A slice is a layer of so many rows."""

_TABLE_ROWS: Final = 4096
"""Positions whose angles are computed at a time."""

Floats = NDArray[np.float32]


class GpuOps:
    """Implements `strata.models.ops.Ops`.  Made, used and closed on one thread.

    Rows need no tile to be alone in: every kernel computes a row the same way beside any others.  So a tile is one row;
    where cuBLAS makes the products it is what that is always asked for (whole_tiles.py).
    """

    def __init__(
        self,
        make_device: Callable[[], Device] | None = None,
        activations: str = "f32",
        open_blas: Callable[[Device], Cublas | None] | None = None,
        sizes: Sizes = USUAL,
        parts_bytes: int = PARTS_BYTES,
    ) -> None:
        """`activations`: one of `MANY_OF`, and of `STORED`.  `open_blas`: of products of 16 bits by cuBLAS, if they are
        to be; `sizes`: of these; `parts_bytes`: for attention, where the context needs no more.

        Raises DeviceMissing where there is no card, or not what `open_blas` needs, ConfigError where it hasn't these
        numbers, and OutOfDeviceMemory.
        """
        self._device = (make_device or open_device)()
        self._blas: Cublas | None = None
        self._lead = Lead(self._device)
        self._activations = activations
        self._roof = Roof(self._device, activations)
        try:
            if why := self._device.lacks(activations):
                raise ConfigError("activations", why)
            self._staging = staging = Staging(self._device)
            self.attention = Attention(self._device, staging, parts_bytes)
            if open_blas is not None and activations != "f32":
                self._blas = open_blas(self._device)
            self.tiles = self._kernels_of_tiles(sizes)
            self.tile = sizes.rows if isinstance(self.tiles, WholeTiles) else 1
            self.rows = RowwiseKernels(self._device, FEW)
            self._lone = LoneRows(self.attention)
            self._drawing = Drawing(self._device, staging)
            self._replaying = Replaying.on(self._device, staging, self.rows, self._lone)
        except BaseException:
            self.close()
            raise

    def _kernels_of_tiles(self, sizes: Sizes) -> RowwiseKernels | WholeTiles:
        if self._blas is None:
            return RowwiseKernels(self._device, MANY_OF[self._activations])
        return WholeTiles(self._device, self._blas, self._activations, sizes)

    @property
    def device(self) -> str:
        numbers = "" if self._activations == "f32" else f", {self._activations}"
        products = "" if self._blas is None else f", {self._blas.name}"
        return f"cuda ({self._device.name}, {self._device.arch}{numbers}{products})"

    def slice_tiles(self, _position: int) -> int:
        return _SLICE_ROWS // self.tile

    # -- memory ---------------------------------------------------------------------------------------------------

    def available_bytes(self) -> int:
        return max(0, self._device.free_memory() - RESERVE)

    def matrix_bytes(self, tensor: Stored) -> int:
        return int(tensor.data.nbytes)

    def matrix(self, parts: Sequence[Stored]) -> Matrix:
        matrix = weights.load(self._device, parts)
        self._expect(matrix.parts[0].columns)
        return matrix

    def gated_matrix(self, gate: Stored, up: Stored, activation: Activation) -> GatedMatrix:
        matrix = weights.load_gated(self._device, gate, up, activation)
        self._expect(matrix.gate.columns)
        return matrix

    def _expect(self, columns: int) -> None:
        if isinstance(self.tiles, WholeTiles):
            self.tiles.expect(columns)

    def vector(self, tensor: Stored) -> DeviceArray:
        return self.vectors([tensor])

    def vectors(self, parts: Sequence[Stored]) -> DeviceArray:
        return self.stored(np.concatenate([weights.float32(part) for part in parts]).reshape(1, -1))

    def rotation_bytes(self, context: int, turned: int) -> int:
        return 4 * context * turned

    def rotation(
        self, context: int, turned: int, theta: float, factors: Sequence[float] = (), scale: float = 1.0
    ) -> DeviceArray:
        """Cosine and sine of each angle, side by side: (positions, turned).  Computed in float64.

        https://arxiv.org/abs/2104.09864, equation 15.
        """
        speeds = theta ** (-np.arange(0, turned, 2, dtype=np.float64) / turned)
        if factors:
            speeds /= np.array(factors, np.float64)
        angles = self.empty(context, turned)
        for first in range(0, context, _TABLE_ROWS):
            positions = np.arange(first, min(first + _TABLE_ROWS, context), dtype=np.float64)
            turns = (scale * np.exp(1j * np.outer(positions, speeds))).astype(np.complex64)
            self._device.store(angles[first:].pointer, turns.view(np.float32))
        return angles

    def empty(self, rows: int, width: int) -> DeviceArray:
        return DeviceArray(self._device.alloc(4 * rows * width), rows, width, width)

    def bytes_of_page(self, shape: Shape) -> int:
        return page_nbytes(shape, STORED[self._activations])

    def cache(self, shape: Shape) -> PagedCache:
        """Raises ModelError for heads that are too wide: said when the engine starts, not at the first request."""
        check_width(shape.head_dim)
        if isinstance(self.tiles, WholeTiles):
            # Known now: all weights have been loaded.
            taken = self.tiles.nbytes / 2**20
            _log.info("strata: %s multiplies what is read, with %.1f MiB of the card", self._blas, taken)
        return PagedCache(self._device, shape, STORED[self._activations])

    def context_bytes(self, context: int, heads: int, head_dim: int) -> int:
        return self.attention.context_bytes(context, heads, head_dim)

    def expect_context(self, context: int, heads: int, cache: PagedCache) -> None:
        self.attention.expect_context(context, heads, cache)

    def copy_out(self, cache: PagedCache, page: int, slot: int) -> None:
        cache.copy_out(page, slot)

    def copy_in(self, cache: PagedCache, slot: int, page: int) -> None:
        cache.copy_in(slot, page)

    def numbers(self, array: DeviceArray) -> Floats:
        """A copy on the host, after all that was told before."""
        out = np.empty((array.rows, array.columns), np.float32)
        if array.stride == array.columns:
            self._device.download(array.pointer, out)
        else:
            for row in range(array.rows):
                self._device.download(array[row : row + 1].pointer, out[row])
        return out

    def draw(self, array: DeviceArray, draws: Sequence[Draw | None], positions: Sequence[int]) -> Sequence[int | None]:
        return self._drawing.of(array, draws, positions)

    def page_bytes(self, cache: PagedCache, pages: Sequence[int], length: int) -> Iterator[memoryview]:
        return cache.page_bytes(pages, length)

    def stored(self, numbers: Floats) -> DeviceArray:
        """A copy on the card of (rows, columns)."""
        made = self.empty(*numbers.shape)
        self._device.store(made.pointer, numbers)
        return made

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def embed(self, matrix: Matrix, tokens: NDArray[np.int64], scale: float, out: DeviceArray) -> None:
        """Raises IndexError for a token that the matrix doesn't have."""
        (part,) = matrix.parts
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < part.outputs:
            raise IndexError(f"a token is not below {part.outputs}")
        where = self._staging.put(tokens.astype(np.int32))
        kernel = self._device.load(EMBED, WEIGHTS=part.kind)
        rows = part.pointer, where, out.pointer, out.stride, part.columns
        self._device.launch(kernel, (len(tokens), 1), *rows, scale)

    def attend_tiles(
        self,
        queries: DeviceArray,
        keys: DeviceArray,
        values: DeviceArray,
        sight: Sight,
        cache: PagedCache,
        pages: Sequence[int],
        first: int,
        real: range,
        out: DeviceArray,
    ) -> None:
        self._lead.slice_queued()
        inside = slice(real.start - first, real.stop - first)
        rows = Rows(queries, keys, values)[inside]
        self.attention.turn_and_store(rows, cache, sight, pages, real.start)
        self.attention.chunk(rows.queries, cache, sight, pages, real.start, out[inside])
        for padding in (out[: inside.start], out[inside.stop :]):
            # They lie side by side: `out` is no columns of wider rows.
            if len(padding):
                self._device.zero(padding.pointer, 4 * padding.stride * len(padding))

    def attend_rows(
        self,
        queries: DeviceArray,
        keys: DeviceArray,
        values: DeviceArray,
        sight: Sight,
        cache: PagedCache,
        places: Sequence[Place],
        out: DeviceArray,
    ) -> None:
        self._lone.attend(Rows(queries, keys, values), sight, cache, places, out)

    def recorder(self) -> RecordedStep:
        return RecordedStep(self._replaying)

    def recorder_bytes(self, operations: int) -> int:
        return bytes_of(operations)

    def roof(self) -> Roof:
        return self._roof

    def close(self) -> None:
        if self._blas is not None:
            self._blas.close()
        self._roof.close()
        self._device.close()


def open_device() -> Device:
    """The card that is there, with kernels that NVRTC compiles for its driver.  Raises DeviceMissing."""
    known, _ = begin(load_driver())
    return Device(Cubins(Nvrtc(known=known)))
