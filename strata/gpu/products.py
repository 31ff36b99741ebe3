"""What is done to each row by itself: norms, products, gates.  Knows rows; no cache and no sequence.

Two forms, as in `cuda/linear.cu`: for few rows and for many; of the latter one more in numbers of 16 bits, as in
`cuda/tensor.cu`.  Their products round differently, and nothing else does.  whole_tiles.py has those that cuBLAS makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.device import Device
from strata.gpu.weights import GatedMatrix, Matrix


@frozen
class Form:
    """The kernels of one form, and how many outputs and rows a block of it makes."""

    linear: table.Kernel
    add_linear: table.Kernel
    gated: table.Kernel
    outputs: int
    rows: int
    definitions: Mapping[str, str] = {}

    def grid(self, outputs: int, rows: int) -> tuple[int, int]:
        return -(-outputs // self.outputs), -(-rows // self.rows)


FEW: Final = Form(table.LINEAR_ROWS, table.ADD_LINEAR_ROWS, table.GATED_ROWS, outputs=4, rows=8)
MANY: Final = Form(table.LINEAR_TILES, table.ADD_LINEAR_TILES, table.GATED_TILES, outputs=64, rows=64)


def _in_tensor_cores(number: str) -> Form:
    kernels = table.LINEAR_TENSOR, table.ADD_LINEAR_TENSOR, table.GATED_TENSOR
    return Form(*kernels, outputs=64, rows=128, definitions={"NUMBER": number})


MANY_OF: Final = {"f32": MANY, "f16": _in_tensor_cores("Half"), "bf16": _in_tensor_cores("Brain")}
"""For many rows, by the numbers that rows and weights are rounded to before they are multiplied."""


class Rowwise:
    """All but the products, which are the same in every form."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def norm(self, x: DeviceArray, weight: DeviceArray, eps: float, out: DeviceArray) -> None:
        self._norm(table.NORM, x, weight, eps, out)

    def add_norm(self, x: DeviceArray, weight: DeviceArray, eps: float, out: DeviceArray) -> None:
        self._norm(table.ADD_NORM, x, weight, eps, out)

    def _norm(self, kernel: table.Kernel, x: DeviceArray, weight: DeviceArray, eps: float, out: DeviceArray) -> None:
        launcher = self._device.load(kernel)
        rows = x.pointer, x.stride, weight.pointer, out.pointer, out.stride
        self._device.launch(launcher, (len(x), 1), *rows, x.columns, eps)

    def norm_heads(self, x: DeviceArray, weight: DeviceArray, eps: float) -> None:
        head_dim = weight.columns
        kernel = self._device.load(table.NORM_HEADS)
        grid = len(x), x.columns // head_dim
        self._device.launch(kernel, grid, x.pointer, x.stride, weight.pointer, head_dim, eps)

    def add(self, x: DeviceArray, vector: DeviceArray) -> None:
        kernel = self._device.load(table.ADD_VECTOR)
        self._device.launch(kernel, (len(x), 1), x.pointer, x.stride, vector.pointer, x.columns)


class RowwiseKernels(Rowwise):
    """Implements `strata.models.ops.Kernels` in one of these forms."""

    def __init__(self, device: Device, form: Form) -> None:
        super().__init__(device)
        self._form = form

    def linear(self, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        self._multiply(self._form.linear, x, matrix, out)

    def add_linear(self, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        self._multiply(self._form.add_linear, x, matrix, out)

    def _multiply(self, kernel: table.Kernel, x: DeviceArray, matrix: Matrix, out: DeviceArray) -> None:
        done = 0
        for part in matrix.parts:
            to = out[:, done : done + part.outputs]
            done += part.outputs
            launcher = self._device.load(kernel, WEIGHTS=part.kind, **self._form.definitions)
            sizes = len(x), part.outputs, part.columns
            grid = self._form.grid(part.outputs, len(x))
            self._device.launch(launcher, grid, x.pointer, x.stride, part.pointer, to.pointer, to.stride, *sizes)

    def gated(self, x: DeviceArray, matrix: GatedMatrix, out: DeviceArray) -> None:
        gate, up = matrix.gate, matrix.up
        # One that needs no other text is compiled with the products.
        opened = {} if matrix.activation == "silu" else {"GATE": matrix.activation}
        kernel = self._device.load(self._form.gated, WEIGHTS=gate.kind, **opened, **self._form.definitions)
        sizes = len(x), gate.outputs, gate.columns
        grid = self._form.grid(gate.outputs, len(x))
        self._device.launch(
            kernel, grid, x.pointer, x.stride, gate.pointer, up.pointer, out.pointer, out.stride, *sizes
        )
