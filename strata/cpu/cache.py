"""Keys and values in pages.  Knows layers, heads and positions; not whose they are, and no arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Shape(Protocol):
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


def page_nbytes(shape: Shape) -> int:
    """Of each page, over all layers; and of each slot."""
    return np.dtype(np.float32).itemsize * prod(shape.of_page)


class PagedCache:
    """The memory of all pages: float32 (pages, layers, keys and values, kv_heads, page_tokens, head_dim), C order.

    A page is one piece of memory, so that it can be moved in one piece; in a page, a head's positions are neighbours,
    so that a span of them is copied in few runs.

    The arena is as many slots of the same kind.  The system maps all of it here, and hands it over as it is first
    written.
    """

    def __init__(self, shape: Shape) -> None:
        self.page_tokens = shape.page_tokens
        self.kv_heads = shape.kv_heads
        self.head_dim = shape.head_dim
        self._pages = np.zeros((shape.pages, *shape.of_page), np.float32)
        self._slots = np.zeros((shape.slots, *shape.of_page), np.float32)

    @property
    def memory(self) -> NDArray[np.float32]:
        return self._pages

    def write(
        self,
        layer: int,
        pages: Sequence[int],
        start: int,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
    ) -> None:
        """Store keys and values, each (tokens, kv_heads, head_dim), at positions start, start + 1, ..."""
        for page, inside, at, count in self._runs(pages, start, start + len(keys)):
            there = self._pages[page, layer]
            there[0, :, inside : inside + count] = keys[at : at + count].swapaxes(0, 1)
            there[1, :, inside : inside + count] = values[at : at + count].swapaxes(0, 1)

    def gather(
        self, layer: int, pages: Sequence[int], heads: slice, start: int, end: int, out: NDArray[np.float32]
    ) -> None:
        """Copy positions start .. end - 1 of these heads to `out`, (2, heads, at least end - start, head_dim).

        What is left of `out` becomes zeros: whatever memory held there before, no arithmetic may meet it.
        """
        for page, inside, at, count in self._runs(pages, start, end):
            out[:, :, at : at + count] = self._pages[page, layer, :, heads, inside : inside + count]
        if end - start < out.shape[2]:
            out[:, :, end - start :] = 0

    def copy_out(self, page: int, slot: int) -> None:
        self._slots[slot] = self._pages[page]

    def copy_in(self, slot: int, page: int) -> None:
        self._pages[page] = self._slots[slot]

    def page_bytes(self, pages: Sequence[int], length: int) -> Iterator[memoryview]:
        """All that is stored for positions below `length`, page by page; numbers behind the last page are slots."""
        total = len(self._pages)
        for place, _, _, count in self._runs(pages, 0, length):
            page = self._pages[place] if place < total else self._slots[place - total]
            yield np.ascontiguousarray(page[:, :, :, :count]).reshape(-1).view(np.uint8).data

    def _runs(self, pages: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """For each page that start .. end - 1 touch: its number, first position in it, offset from start, count."""
        position = start
        while position < end:
            index, inside = divmod(position, self.page_tokens)
            count = min(self.page_tokens - inside, end - position)
            yield pages[index], inside, position - start, count
            position += count
