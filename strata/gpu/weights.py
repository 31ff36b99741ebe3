"""Weights on the card, as their file holds them.  Knows formats' sizes and where parts lie; no arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias

import gguf
import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.errors import ModelError
from strata.gpu.device import Device

FORMATS: Final = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q4_K", "Q5_K", "Q6_K"),
)
"""Those of `cuda/formats.cuh`."""

_WIDE: Final = 8
"""Columns that a thread reads at a time."""


Activation: TypeAlias = Literal["silu", "gelu"]
"""What opens a gate."""


class Stored(Protocol):
    """A weight as it lies in its file."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def data(self) -> NDArray[Any]: ...


@frozen
class Part:
    """(outputs, columns) in blocks of one format."""

    pointer: int
    kind: str
    outputs: int
    columns: int


@frozen
class Matrix:
    """Parts of like width, one below the other."""

    parts: tuple[Part, ...]


@frozen
class GatedMatrix:
    """Two of one shape and one format."""

    gate: Part
    up: Part
    activation: Activation


def load(device: Device, tensors: Sequence[Stored]) -> Matrix:
    return Matrix(tuple(_load(device, tensor) for tensor in tensors))


def load_gated(device: Device, gate: Stored, up: Stored, activation: Activation) -> GatedMatrix:
    """Where the formats differ both become float32: one kernel reads both sides."""
    if gate.kind == up.kind:
        return GatedMatrix(_load(device, gate), _load(device, up), activation)
    return GatedMatrix(_load_float32(device, gate), _load_float32(device, up), activation)


def float32(tensor: Stored) -> NDArray[np.float32]:
    """Its numbers, in its shape."""
    kind = gguf.GGMLQuantizationType[tensor.kind]
    with np.errstate(all="ignore"):  # what a damaged file makes is seen at the logits
        numbers = gguf.dequantize(_rows(tensor), kind)
    return np.ascontiguousarray(numbers, np.float32).reshape(tensor.shape)


def _rows(tensor: Stored) -> NDArray[np.uint8]:
    return tensor.data.reshape(-1).view(np.uint8).reshape(*tensor.shape[:-1], -1)


def _load(device: Device, tensor: Stored) -> Part:
    outputs, columns = tensor.shape
    if tensor.kind not in FORMATS:
        raise ModelError(f"{tensor.name} is of the kind {tensor.kind}, which the GPU engine doesn't read; use another")
    if columns % _WIDE:
        raise ModelError(f"{tensor.name} has {columns} columns, and the GPU engine takes multiples of {_WIDE}")
    return Part(_copy(device, tensor.data.reshape(-1).view(np.uint8)), tensor.kind, outputs, columns)


def _load_float32(device: Device, tensor: Stored) -> Part:
    return _load(device, _Expanded(tensor.name, "F32", tensor.shape, float32(tensor)))


@frozen
class _Expanded:
    name: str
    kind: str
    shape: tuple[int, ...]
    data: NDArray[Any]


def _copy(device: Device, data: NDArray[np.uint8]) -> int:
    pointer = device.alloc(data.nbytes)
    device.store(pointer, np.ascontiguousarray(data))
    return pointer
