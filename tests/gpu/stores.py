"""Keys and values put into pages as they are, turned by nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strata.gpu.arrays import DeviceArray
from strata.gpu.attention import Rows
from strata.gpu.cache import PagedCache
from strata.gpu.ops import GpuOps
from strata.models.ops import Sight

UNTURNED: Final = DeviceArray(0, 0, 0, 0)
"""Angles of no pair."""


def store(
    card: GpuOps,
    cache: PagedCache,
    layer: int,
    pages: Sequence[int],
    start: int,
    keys: DeviceArray,
    values: DeviceArray,
) -> None:
    """At positions start, start + 1, ... of one sequence; both lie in the same wider rows."""
    rows = Rows(keys[:, :0], keys, values)
    card.attention.turn_and_store(rows, cache, Sight(layer, UNTURNED, 1.0), pages, start)
