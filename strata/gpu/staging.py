"""Small tables of whole numbers on their way to the card: tokens, positions, page numbers.

A room of its own because what is copied while both sides go on must lie still until it was copied.  Knows no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from strata.gpu.device import Device

Table = Sequence[int] | NDArray[np.int32]
"""Of any shape."""

_ALIGNMENT: Final = 64
"""Numbers: tables begin at multiples of 256 bytes."""

HALF: Final = (1 << 20) + _ALIGNMENT
"""Numbers in each of the two halves: a row's position and the pages of a million tokens, or more rows with fewer."""


@define
class _Half:
    start: int
    used: int = 0
    known: dict[bytes, int] = field(factory=dict)
    copied: int | None = None
    """The stream's mark after the last copy out of it, once it is full."""


class Staging:
    """Two halves by turns; one is filled anew only when all of its copies are done.

    The same table again is not copied again while it is still there: all layers of a step ask for the same ones.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = device.pinned(4 * 2 * HALF).view(np.int32)
        self._pointer = device.alloc(4 * 2 * HALF)
        self._filled, self._other = _Half(0), _Half(HALF)

    def put(self, table: Table) -> int:
        """The pointer of its copy on the card (int32), good for all that is launched before the next `put`s."""
        numbers = np.asarray(table, np.int32).reshape(-1)
        key = numbers.tobytes()
        if key not in self._filled.known:
            at = self._room(len(numbers))
            pointer = self._pointer + 4 * at
            self._copy(numbers, at, pointer)
            self._filled.known[key] = pointer
        return self._filled.known[key]

    def send(self, table: Table, pointer: int) -> None:
        """Copy it to this place on the card, in the order of the stream."""
        numbers = np.asarray(table, np.int32).reshape(-1)
        self._copy(numbers, self._room(len(numbers)), pointer)

    def _room(self, length: int) -> int:
        """Where in the host's memory, and in that of the card, there is room for so many."""
        if length > HALF:
            raise ValueError(f"a table of {length} numbers is longer than {HALF}")
        if self._filled.used + length > HALF:
            self._turn()
        half = self._filled
        at = half.start + half.used
        half.used += -(-length // _ALIGNMENT) * _ALIGNMENT
        return at

    def _copy(self, numbers: NDArray[np.int32], at: int, pointer: int) -> None:
        place = self._host[at : at + len(numbers)]
        place[:] = numbers
        self._device.upload(pointer, place)

    def _turn(self) -> None:
        self._filled.copied = self._device.record()
        self._filled, self._other = self._other, self._filled
        half = self._filled
        if half.copied is not None:
            self._device.wait(half.copied)
        half.used, half.copied = 0, None
        half.known.clear()
