"""Keys and values in pages on the card.  Knows their layout; not whose they are, and no arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
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


class PagedCache:
    """The memory of all pages, filled with zeros: `cuda/pages.cuh` has the layout.

    The arena is as many slots of the same kind in pinned memory of the host, so that a page moves by one copy that
    neither side waits for: the stream keeps it before all that is done with the page, or the slot, later.
    """

    def __init__(self, device: Device, shape: Shape) -> None:
        self.layers = shape.layers
        self.page_tokens = shape.page_tokens
        self.kv_heads = shape.kv_heads
        self.head_dim = shape.head_dim
        self._device = device
        self._page_shape = (shape.layers, 2, shape.kv_heads, shape.page_tokens, shape.head_dim)
        self.page_nbytes = 4 * int(np.prod(self._page_shape, dtype=np.int64))
        self.pointer = device.alloc(shape.pages * self.page_nbytes)
        device.zero(self.pointer, shape.pages * self.page_nbytes)
        self._total = shape.pages
        # PyCUDA pins no empty memory.
        arena = device.pinned(shape.slots * self.page_nbytes) if shape.slots else np.empty(0, np.uint8)
        self._slots = arena.view(np.float32).reshape(shape.slots, *self._page_shape)

    def page_bytes(self, pages: Sequence[int], length: int) -> Iterator[memoryview]:
        """All that is stored for positions below `length`, page by page; numbers behind the last page are slots."""
        for start in range(0, length, self.page_tokens):
            page = self._numbers(pages[start // self.page_tokens])
            stored = page[:, :, :, : min(self.page_tokens, length - start)]
            yield np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data

    def copy_out(self, page: int, slot: int) -> None:
        self._device.fetch(self._place(page), self._slots[slot])

    def copy_in(self, slot: int, page: int) -> None:
        self._device.upload(self._place(page), self._slots[slot])

    def _place(self, page: int) -> int:
        return self.pointer + page * self.page_nbytes

    def _numbers(self, page: int) -> NDArray[np.float32]:
        if page >= self._total:
            self._device.synchronize()
            slot: NDArray[np.float32] = self._slots[page - self._total]
            return slot
        numbers = np.empty(self._page_shape, np.float32)
        self._device.download(self._place(page), numbers)
        return numbers
