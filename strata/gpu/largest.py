"""The largest numbers of rows, so that the host needn't copy all of them.  Knows no token and no way of choosing."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.device import Device

PART: Final = 4096
"""Columns of a block of `largest`."""

ROOM_BYTES: Final = 2 << 20
"""Memory for what one launch hands to the next, and for what that makes of it; rows that need more are done in goes."""


class Largest:
    def __init__(self, device: Device, room_bytes: int = ROOM_BYTES) -> None:
        self._device = device
        self._rooms = device.alloc(room_bytes), device.alloc(room_bytes)
        self._room_bytes = room_bytes

    def of(self, array: DeviceArray, count: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """See `strata.models.ops.Ops.largest`; `count` is at most the array's columns."""
        row = 8 * count * -(-array.columns // PART)
        together = max(1, self._room_bytes // row)
        goes = [self._some(array[at : at + together], count) for at in range(0, len(array), together)]
        both = np.concatenate(goes, axis=1)
        names = both[1].view(np.int32).astype(np.intp)
        order = np.argsort(names, axis=1)
        return np.take_along_axis(names, order, axis=1), np.take_along_axis(both[0], order, axis=1)

    def _some(self, array: DeviceArray, count: int) -> NDArray[np.float32]:
        """(2, rows, count): the numbers, and the bits of their columns."""
        kernel, rows, room = self._device.load(table.LARGEST), len(array), 0
        numbers, stride, names, columns = array.pointer, array.stride, 0, array.columns
        parts = -(-columns // PART)
        while True:
            out = self._rooms[room]
            out_names = out + 4 * rows * parts * count
            self._device.launch(kernel, (parts, rows), numbers, stride, names, columns, count, out, out_names)
            if parts == 1:
                break
            numbers, stride, names, columns = out, parts * count, out_names, parts * count
            parts, room = -(-columns // PART), 1 - room
        both = np.empty((2, rows, count), np.float32)
        self._device.download(out, both)
        return both
