"""Where rows that come alone stand, as tables on the card.  Knows positions and pages; no sequence and no number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

SPAN: Final = 256
"""Keys of a block of `attend_spans`."""

Place = tuple[Sequence[int], int]
"""A row's pages and its position."""


@frozen
class Shape:
    """Of a table: its rows, the `spans` of the longest at most, and as many pages as those have (`width`)."""

    rows: int
    spans: int
    width: int

    @classmethod
    def of(cls, places: Sequence[Place], page_tokens: int) -> Shape:
        """The least one: so many spans and no more."""
        return cls._with(len(places), spans(places), page_tokens)

    @classmethod
    def rounded(cls, places: Sequence[Place], page_tokens: int) -> Shape:
        """Spans are a power of two, so that a step seldom has another shape than the one before."""
        return cls._with(len(places), 1 << (spans(places) - 1).bit_length(), page_tokens)

    @classmethod
    def _with(cls, rows: int, spans: int, page_tokens: int) -> Shape:
        return cls(rows, spans, -(-spans * SPAN // page_tokens))

    @property
    def numbers(self) -> int:
        return self.rows * (1 + self.width)

    def table(self, places: Sequence[Place], page_tokens: int) -> NDArray[np.int32]:
        """(rows, 1 + width): see `cuda/pages.cuh`."""
        table = np.zeros((self.rows, 1 + self.width), np.int32)
        for row, (pages, position) in zip(table, places, strict=True):
            used = pages[: position // page_tokens + 1]
            row[0], row[1 : 1 + len(used)] = position, used
        return table


@frozen
class Placed:
    """Such a table on the card."""

    pointer: int
    shape: Shape


def spans(places: Sequence[Place]) -> int:
    """Of the longest."""
    return max(position for _, position in places) // SPAN + 1


def pages_of(places: Sequence[Place]) -> Iterator[int]:
    """Of all rows."""
    return (page for pages, _ in places for page in pages)
