"""What the card does at most: a copy of its memory, and a product of large matrices by cuBLAS.

Our own kernels' largest product would be a roof of ours alone, so without the library there is none.  Knows no model's
operation: those are held against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.gpu.arrays import DeviceArray
from strata.gpu.cublas import Cublas, Library, Numbers
from strata.gpu.device import Device

COPIED: Final = 256 << 20
"""Bytes: far more than any cache holds."""
SIDE: Final = 8192
"""Of the matrices: every multiprocessor has many tiles of them."""

_SOME: Final = 1 << 16
"""Numbers of which a matrix is made: a card multiplies zeros, which take less power, faster than others."""


class Roof:
    """Implements `strata.models.ops.Roof`.  On a device, and closed before it; its memory stays taken.

    `numbers`: what is multiplied of rows that are read together: f32, f16 or bf16.  At most an eighth of what is free
    is taken for either.  `find`: where cuBLAS is looked for.
    """

    def __init__(
        self,
        device: Device,
        numbers: str,
        *,
        copied: int = COPIED,
        side: int = SIDE,
        find: Callable[..., Library] = Library,
    ) -> None:
        self._device = device
        self._numbers = numbers
        self._copied = copied
        self._side = side
        self._find = find
        self._pair: tuple[int, int, int] | None = None
        self._blas: Cublas | None = None
        self._products: dict[str, tuple[Numbers, Numbers, DeviceArray]] = {}

    def copy(self) -> int:
        if self._pair is None:
            nbytes = min(self._copied, self._device.free_memory() // 16)
            source, to = self._device.alloc(nbytes), self._device.alloc(nbytes)
            self._device.zero(source, nbytes)
            self._pair = source, to, nbytes
        source, to, nbytes = self._pair
        self._device.copy(to, source, nbytes)
        return 2 * nbytes

    def multiply(self, together: bool) -> tuple[str, int]:
        numbers = self._numbers if together else "f32"
        if self._blas is None:
            self._blas = Cublas(self._find(known=self._device.cuda[0]), self._device)
        if numbers not in self._products:
            self._products[numbers] = self._matrices(numbers)
        x, weights, out = self._products[numbers]
        self._blas.product(x, weights, numbers, out)
        return f"{numbers}, {self._blas.name}", 2 * x.rows * x.columns * weights.rows

    def _matrices(self, numbers: str) -> tuple[Numbers, Numbers, DeviceArray]:
        side, free = self._side, self._device.free_memory()
        while 12 * side * side > free // 8:
            side //= 2
        some = _bits(np.random.default_rng(0).standard_normal(_SOME, np.float32), numbers)
        left, right = (Numbers(self._filled(some, side * side), side, side) for _ in range(2))
        return left, right, DeviceArray(self._device.alloc(4 * side * side), side, side, side)

    def _filled(self, some: NDArray[Any], count: int) -> int:
        pointer = self._device.alloc(count * some.itemsize)
        self._device.store(pointer, np.resize(some, count))
        return pointer

    def close(self) -> None:
        if self._blas is not None:
            self._blas.close()


def _bits(numbers: NDArray[np.float32], kind: str) -> NDArray[Any]:
    if kind == "f16":
        return numbers.astype(np.float16)
    return numbers if kind == "f32" else (numbers.view(np.uint32) >> 16).astype(np.uint16)
