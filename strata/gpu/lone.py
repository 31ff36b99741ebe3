"""Rows that come alone, each of another sequence: turned by their positions, stored, and attending.

Knows the order of these, and how many rows there is memory for at a time; no kernel and no step.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from strata.gpu.arrays import DeviceArray
from strata.gpu.attention import Attention, Sight
from strata.gpu.cache import PagedCache
from strata.gpu.places import Place, Placed, Shape
from strata.gpu.products import RowwiseKernels


@frozen
class Rows:
    """What is asked for and what is stored, a row of each for every place."""

    queries: DeviceArray
    keys: DeviceArray
    values: DeviceArray

    def __getitem__(self, some: slice) -> Rows:
        return Rows(self.queries[some], self.keys[some], self.values[some])


class LoneRows:
    def __init__(self, kernels: RowwiseKernels, attention: Attention) -> None:
        self._kernels = kernels
        self._attention = attention

    def attend(self, rows: Rows, sight: Sight, cache: PagedCache, places: Sequence[Place], out: DeviceArray) -> None:
        """`strata.models.ops.Ops.attend_rows`, however many there are."""
        heads = rows.queries.columns // cache.head_dim
        goes = list(self._attention.goes(places, heads, cache.head_dim, cache.page_tokens))
        for go in goes:
            self._store(rows[go], sight, cache, self._attention.place(cache, places[go]))
        for go in goes:
            self._attention.rows(rows.queries[go], cache, sight, self._attention.place(cache, places[go]), out[go])

    def fit(self, shape: Shape, heads: int, cache: PagedCache) -> bool:
        """Whether so many can be placed at once."""
        return self._attention.fits(shape, heads, cache.head_dim)

    def attend_placed(self, rows: Rows, sight: Sight, cache: PagedCache, placed: Placed, out: DeviceArray) -> None:
        """The same for rows that there is memory for; nothing is told the card but launches."""
        self._store(rows, sight, cache, placed)
        self._attention.rows(rows.queries, cache, sight, placed, out)

    def _store(self, rows: Rows, sight: Sight, cache: PagedCache, placed: Placed) -> None:
        for turned in (rows.queries, rows.keys):
            self._kernels.rotate_at(turned, sight.angles, cache.head_dim, placed.pointer, placed.apart)
        self._attention.store_rows(cache, sight.layer, placed, rows.keys, rows.values)
