"""Rows that come alone, each of another sequence: turned by their positions, stored, and attending.

Knows the order of these, and how many rows there is memory for at a time; no kernel and no step.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.gpu.arrays import DeviceArray
from strata.gpu.attention import Attention, Rows, Sight
from strata.gpu.cache import PagedCache
from strata.gpu.places import Place, Placed, Shape


class LoneRows:
    def __init__(self, attention: Attention) -> None:
        self._attention = attention

    def attend(self, rows: Rows, sight: Sight, cache: PagedCache, places: Sequence[Place], out: DeviceArray) -> None:
        """`strata.models.ops.Ops.attend_rows`, however many there are."""
        heads = rows.queries.columns // cache.head_dim
        goes = list(self._attention.goes(places, heads, cache.head_dim, cache.page_tokens))
        for go in goes:
            placed = self._attention.place(cache, places[go])
            self._attention.turn_and_store_rows(rows[go], cache, sight, placed)
        for go in goes:
            self._attention.rows(rows.queries[go], cache, sight, self._attention.place(cache, places[go]), out[go])

    def fit(self, shape: Shape, heads: int, cache: PagedCache) -> bool:
        """Whether so many can be placed at once."""
        return self._attention.fits(shape, heads, cache.head_dim)

    def attend_placed(self, rows: Rows, sight: Sight, cache: PagedCache, placed: Placed, out: DeviceArray) -> None:
        """The same for rows that there is memory for; nothing is told the card but launches."""
        self._attention.turn_and_store_rows(rows, cache, sight, placed)
        self._attention.rows(rows.queries, cache, sight, placed, out)
