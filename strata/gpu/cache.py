"""Keys and values in pages on the card.  Knows their layout; not whose they are, and no arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any, Final, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.gpu.device import Device


class Shape(Protocol):
    @property
    def layers(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def page_tokens(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def of_page(self) -> tuple[int, ...]: ...


@frozen
class Stored:
    """What a page's numbers are: by their `name` in `cuda/pages.cuh`, and as what their bits lie here."""

    name: str
    bits: type[np.float32 | np.uint16]


STORED: Final = {
    "f32": Stored("Single", np.float32),
    "f16": Stored("Half", np.uint16),
    "bf16": Stored("Brain", np.uint16),
}
"""By what rows and weights are rounded to."""


def page_nbytes(shape: Shape, stored: Stored) -> int:
    """Of each page, over all layers; and of each slot."""
    return np.dtype(stored.bits).itemsize * prod(shape.of_page)


class PagedCache:
    """The memory of all pages, filled with zeros: `cuda/pages.cuh` has the layout.

    The arena is as many slots of the same kind in pinned memory of the host, so that a page moves by one copy that
    neither side waits for: it goes beside what is computed until somebody uses the page again, or looks at the slot.
    """

    def __init__(self, device: Device, shape: Shape, stored: Stored) -> None:
        self.stored = stored
        self.layers = shape.layers
        self.page_tokens = shape.page_tokens
        self.kv_heads = shape.kv_heads
        self.head_dim = shape.head_dim
        self._device = device
        self._page_shape = shape.of_page
        self.page_nbytes = page_nbytes(shape, stored)
        self.pointer = device.alloc(shape.pages * self.page_nbytes)
        device.zero(self.pointer, shape.pages * self.page_nbytes)
        self._total = shape.pages
        self._moving: set[int] = set()
        """Pages that were told to be copied since the stream last waited for such copies."""
        # PyCUDA pins no empty memory.
        arena = device.pinned(shape.slots * self.page_nbytes) if shape.slots else np.empty(0, np.uint8)
        self._slots = arena.view(stored.bits).reshape(shape.slots, *self._page_shape)

    def page_bytes(self, pages: Sequence[int], length: int) -> Iterator[memoryview]:
        """All that is stored for positions below `length`, page by page; numbers behind the last page are slots."""
        for start in range(0, length, self.page_tokens):
            page = self._numbers(pages[start // self.page_tokens])
            stored = page[:, :, :, : min(self.page_tokens, length - start)]
            yield np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data

    def copy_out(self, page: int, slot: int) -> None:
        self._device.fetch_beside(self._place(page), self._slots[slot])
        self._moving.add(page)

    def copy_in(self, slot: int, page: int) -> None:
        self._device.upload_beside(self._place(page), self._slots[slot])
        self._moving.add(page)

    def settle(self, pages: Iterable[int]) -> None:
        """Call before anything is told that uses them: it comes after their copies."""
        if self._moving and not self._moving.isdisjoint(pages):
            self._meet()

    def _meet(self) -> None:
        self._device.meet()
        self._moving.clear()

    def _place(self, page: int) -> int:
        return self.pointer + page * self.page_nbytes

    def _numbers(self, page: int) -> NDArray[Any]:
        if page >= self._total:
            self._meet()
            self._device.synchronize()
            slot: NDArray[Any] = self._slots[page - self._total]
            return slot
        numbers = np.empty(self._page_shape, self.stored.bits)
        self.settle([page])
        self._device.download(self._place(page), numbers)
        return numbers
