"""Products of rows that are read, by cuBLAS: whole tiles of positions, and weights made into 16 bits a part at a time.

A room of its own because of what it promises: a row's bits follow from the row and its position alone, though cuBLAS
sums in an order that the shape of a product and a row's place in it may decide.  So it is always asked for the same
shape, a tile's, and a row stands in it where its position lies on the grid.  All else that might count is the same for
a matrix each time: its parts, where they lie, and where sums go, up to whole tiles of rows.  What other rows hold
doesn't touch a row's sums.

Knows rows and weights; no cache and no sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen

from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.cublas import WORK_BYTES, Cublas, Numbers
from strata.gpu.device import Device
from strata.gpu.products import Rowwise
from strata.gpu.weights import GatedMatrix, Matrix, Part

_NAMES: Final = {"f16": "Half", "bf16": "Brain"}
"""That kernels know numbers by."""

_SAME: Final = {"f16": "F16", "bf16": "BF16"}
"""Formats whose weights are these numbers as they lie."""

_ALIGNED: Final = 8
"""Sums, which are 32 bytes."""


@frozen
class Sizes:
    """`rows` of a tile, and of a part of weights its bytes and its `outputs` at most."""

    rows: int = 512
    weight_bytes: int = 64 << 20
    outputs: int = 8192

    def of_part(self, columns: int) -> int:
        """Outputs; so many that the next part's lie where several can be stored at once."""
        most = min(self.outputs, self.weight_bytes // (2 * columns))
        return most - most % _ALIGNED or most


USUAL: Final = Sizes()


class WholeTiles(Rowwise):
    """Implements `strata.models.ops.Kernels` for whole tiles."""

    def __init__(self, device: Device, cublas: Cublas, number: str, sizes: Sizes = USUAL) -> None:
        """`number`: f16 or bf16, what rows and weights are rounded to."""
        super().__init__(device)
        self.sizes = sizes
        self._cublas = cublas
        self._number = number
        self._weights = device.alloc(sizes.weight_bytes)
        self._gates = device.alloc(4 * sizes.rows * sizes.outputs)
        self._rows = 0
        self._widest = 0
        self.nbytes = WORK_BYTES + sizes.weight_bytes + 4 * sizes.rows * sizes.outputs
        """Memory of the card that is taken beside what the kernels of others need."""

    def expect(self, columns: int) -> None:
        """Take memory for rows that are so wide: called for every matrix as it is loaded, and never later."""
        if columns > self._widest:
            # What there was for narrower ones stays until the device is closed.
            nbytes = 2 * self.sizes.rows * columns
            self._rows, self._widest = self._device.alloc(nbytes), columns
            self.nbytes += nbytes

    def linear(self, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        self._multiply(x, matrix, out, add=False)

    def add_linear(self, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        self._multiply(x, matrix, out, add=True)

    def _multiply(self, x: DeviceArray, matrix: Matrix, out: DeviceArray, *, add: bool) -> None:
        for tile in self._tiles(x):
            rows, done = self._rounded(x[tile], matrix.parts[0]), 0
            for part in matrix.parts:
                to = out[tile, done : done + part.outputs]
                done += part.outputs
                for some in self._parts(part):
                    self._cublas.product(rows, self._sixteen(part, some), self._number, to[:, some], add=add)

    def gated(self, x: DeviceArray, matrix: GatedMatrix, out: DeviceArray) -> None:
        for tile in self._tiles(x):
            rows = self._rounded(x[tile], matrix.gate)
            for some in self._parts(matrix.gate):
                self._gate(rows, matrix, some, out[tile, some])

    def _gate(self, rows: Numbers, matrix: GatedMatrix, some: slice, out: DeviceArray) -> None:
        gates = DeviceArray(self._gates, rows.rows, out.columns, out.columns)
        self._cublas.product(rows, self._sixteen(matrix.gate, some), self._number, gates)
        self._cublas.product(rows, self._sixteen(matrix.up, some), self._number, out)
        opened = {} if matrix.activation == "silu" else {"GATE": matrix.activation}
        kernel = self._device.load(table.OPEN_GATES, **self._definitions(matrix.gate), **opened)
        sizes = gates.pointer, gates.stride, out.pointer, out.stride, out.columns
        self._device.launch(kernel, (rows.rows, 1), *sizes)

    def _tiles(self, x: DeviceArray) -> Iterator[slice]:
        """Raises ValueError where some are not whole: their rows would not be where they always are."""
        rows = self.sizes.rows
        if len(x) % rows:
            raise ValueError(f"{len(x)} rows are no tiles of {rows}")
        return (slice(at, at + rows) for at in range(0, len(x), rows))

    def _parts(self, part: Part) -> Iterator[slice]:
        """Of its outputs, as many at a time as there is memory for."""
        together = self.sizes.of_part(part.columns)
        return (slice(at, min(at + together, part.outputs)) for at in range(0, part.outputs, together))

    def _rounded(self, x: DeviceArray, part: Part) -> Numbers:
        """Rows to be multiplied with weights of this kind, which is compiled with them."""
        kernel = self._device.load(table.ROUND_ROWS, **self._definitions(part))
        self._device.launch(kernel, (len(x), 1), x.pointer, x.stride, self._rows, x.columns)
        return Numbers(self._rows, len(x), x.columns)

    def _sixteen(self, part: Part, some: slice) -> Numbers:
        """Some of the outputs' weights; good until the next are asked for."""
        outputs = some.stop - some.start
        if part.kind == _SAME[self._number]:
            return Numbers(part.pointer + 2 * some.start * part.columns, outputs, part.columns)
        kernel = self._device.load(table.ROUND_WEIGHTS, **self._definitions(part))
        self._device.launch(kernel, (outputs, 1), part.pointer, some.start, self._weights, part.columns)
        return Numbers(self._weights, outputs, part.columns)

    def _definitions(self, part: Part) -> dict[str, str]:
        return {"WEIGHTS": part.kind, "NUMBER": _NAMES[self._number]}
