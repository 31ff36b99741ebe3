"""Small tables of whole numbers on their way to the card: tokens, positions, page numbers.

A room of its own because what is copied while both sides go on must lie still until it was copied.  Knows no meaning.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import define, field

from strata.gpu.device import Device

Table = tuple[int, ...]

_HALF: Final = 1 << 20
"""Numbers in each of the two halves: the pages of a row of a million tokens, and more of usual ones."""

_ALIGNMENT: Final = 64
"""Numbers: tables begin at multiples of 256 bytes."""


@define
class _Half:
    start: int
    used: int = 0
    known: dict[Table, int] = field(factory=dict)
    copied: int | None = None
    """The stream's mark after the last copy out of it, once it is full."""


class Staging:
    """Two halves by turns; one is filled anew only when all of its copies are done.

    The same table again is not copied again while it is still there: all layers of a step ask for the same ones.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = device.pinned(4 * 2 * _HALF).view(np.int32)
        self._pointer = device.alloc(4 * 2 * _HALF)
        self._filled, self._other = _Half(0), _Half(_HALF)

    def put(self, table: Table) -> int:
        """The pointer of its copy on the card (int32), good for all that is launched before the next `put`s."""
        if table in self._filled.known:
            return self._filled.known[table]
        if len(table) > _HALF:
            raise ValueError(f"a table of {len(table)} numbers is longer than {_HALF}")
        if self._filled.used + len(table) > _HALF:
            self._turn()
        return self._copy(table)

    def _copy(self, table: Table) -> int:
        half = self._filled
        at = half.start + half.used
        place = self._host[at : at + len(table)]
        place[:] = np.array(table, np.int32)
        pointer = self._pointer + 4 * at
        self._device.upload(pointer, place)
        half.used += -(-len(table) // _ALIGNMENT) * _ALIGNMENT
        half.known[table] = pointer
        return pointer

    def _turn(self) -> None:
        self._filled.copied = self._device.record()
        self._filled, self._other = self._other, self._filled
        half = self._filled
        if half.copied is not None:
            self._device.wait(half.copied)
        half.used, half.copied = 0, None
        half.known.clear()
