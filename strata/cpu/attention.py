"""Causal attention over paged keys and values, for whole tiles and for rows that come alone.

Knows positions and pages; no sequence, no layer's weights.

Keys are summed in spans counted from position 0, combined in order, each as wide as the row's own position says: a
softmax that is carried from span to span (https://arxiv.org/abs/1805.02867, section 3), so nothing depends on what the
sequence holds after the row, nor on where it ends.  Where a row sees only a window of keys, spans before it are left
out and the first one begins with it; a row that shares a span with rows that see further back is left by it as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from strata.cpu.cache import PagedCache
from strata.cpu.kernels import TILE
from strata.cpu.workers import Job, Scratch, Workers

TILE_SPAN: Final = 256
"""Keys that a tile takes at a time: its scores stay in a core's cache.  A multiple of TILE, so a tile lies in one."""

ROW_SPAN: Final = 512
"""Keys that a lone row takes at a time, each span on any thread."""

Floats = NDArray[np.float32]


@frozen
class Heads:
    """`kv_heads` heads of keys, each shared by `group` heads of queries."""

    kv_heads: int
    group: int
    head_dim: int

    @classmethod
    def of(cls, queries: Floats, cache: PagedCache) -> Heads:
        return cls(cache.kv_heads, queries.shape[1] // (cache.kv_heads * cache.head_dim), cache.head_dim)


class Sight(Protocol):
    """How the rows of one layer look at keys; window 0: at all that there are."""

    @property
    def layer(self) -> int: ...
    @property
    def angles(self) -> Any: ...
    @property
    def scale(self) -> float: ...
    @property
    def window(self) -> int: ...


@frozen
class Stored:
    """One layer of one sequence, and how its rows look at it."""

    cache: PagedCache
    sight: Sight
    pages: Sequence[int]

    def begin(self, position: int) -> int:
        """The first key that the row at this position sees."""
        window = self.sight.window
        return max(0, position + 1 - window) if window else 0

    def gather(self, heads: slice, start: int, end: int, out: Floats) -> None:
        self.cache.gather(self.sight.layer, self.pages, heads, start, end, out)


# -- whole tiles --------------------------------------------------------------------------------------------------


def attend_tiles(workers: Workers, queries: Floats, stored: Stored, first: int, end: int, out: Floats) -> None:
    """Queries and out: (n * TILE, heads * head_dim), at positions first, first + 1, ...; first is a multiple of TILE.

    Nothing from position `end` on is looked at.
    """
    heads = Heads.of(queries, stored.cache)
    jobs: list[Job] = [
        partial(_attend_tile, queries[at : at + TILE], stored, heads, head, first + at, end, out[at : at + TILE])
        for at in range(0, len(queries), TILE)
        for head in range(heads.kv_heads)
    ]
    workers.run(jobs)


def _attend_tile(
    queries: Floats, stored: Stored, heads: Heads, head: int, first: int, end: int, out: Floats, scratch: Scratch
) -> None:
    """One tile and one head of keys: its group's queries are stacked into one product of TILE * group rows."""
    rows = TILE * heads.group
    columns = slice(head * heads.group * heads.head_dim, (head + 1) * heads.group * heads.head_dim)
    scaled = scratch.array("queries", rows, heads.head_dim)
    np.multiply(queries[:, columns], np.float32(stored.sight.scale), out=scaled.reshape(TILE, -1))
    running = _Running.start(scratch, rows, heads.head_dim)
    begin = stored.begin(first)
    for start in range(begin - begin % TILE_SPAN, first + TILE, TILE_SPAN):
        width = min(TILE_SPAN, first + TILE - start)
        pair = scratch.array("span", 2, 1, width, heads.head_dim)
        stored.gather(slice(head, head + 1), start, min(start + width, end), pair)
        scores = scratch.array("scores", rows, width)
        np.matmul(scaled, pair[0, 0].T, out=scores)
        if start + width > first:
            # A later key's score must not even take part in the maximum.
            scores.reshape(TILE, heads.group, width)[:, :, -TILE:] += _LATER
        if start < stored.begin(first + TILE - 1):
            scores.reshape(TILE, heads.group, width)[...] += _earlier(start, width, first, stored.sight.window)
        running.add(scores, pair[1, 0])
    running.finish(out[:, columns].reshape(TILE, heads.group, heads.head_dim))


def _later() -> Floats:
    """(row, 1, key): minus infinity where the key comes after the row."""
    places = np.arange(TILE)
    return np.where(places[:, None] < places, np.float32(-np.inf), np.float32(0))[:, None, :]


_LATER: Final = _later()


def _earlier(start: int, width: int, first: int, window: int) -> Floats:
    """The same for keys before each row's window, of those at start .. start + width - 1."""
    begins = first + 1 - window + np.arange(TILE)
    keys = np.arange(start, start + width)
    return np.where(keys < begins[:, None], np.float32(-np.inf), np.float32(0))[:, None, :]


_LEAST: Final = np.finfo(np.float32).min


@frozen
class _Running:
    """The softmax so far: its largest score, its sum and the weighted sum of values, of every row."""

    largest: Floats
    total: Floats
    values: Floats
    fresh: Floats
    scratch: Scratch

    @classmethod
    def start(cls, scratch: Scratch, rows: int, head_dim: int) -> _Running:
        running = cls(
            scratch.array("largest", rows, 1),
            scratch.array("total", rows, 1),
            scratch.array("values", rows, head_dim),
            scratch.array("fresh values", rows, head_dim),
            scratch,
        )
        # Not minus infinity: a span of which a row sees nothing leaves it as it was, and is no infinity less another.
        running.largest[...] = _LEAST
        running.total[...] = 0
        running.values[...] = 0
        return running

    def add(self, scores: Floats, values: Floats) -> None:
        """Take in the next span's scores (rows, keys), which are overwritten, and values (keys, head_dim)."""
        rows = len(scores)
        largest = np.maximum.reduce(scores, axis=-1, keepdims=True, out=self.scratch.array("span largest", rows, 1))
        np.maximum(largest, self.largest, out=largest)
        scores -= largest
        np.exp(scores, out=scores)
        kept = np.subtract(self.largest, largest, out=self.largest)
        np.exp(kept, out=kept)
        self.total[...] *= kept
        self.total[...] += np.add.reduce(scores, axis=-1, keepdims=True)
        np.matmul(scores, values, out=self.fresh)
        self.values[...] *= kept
        self.values[...] += self.fresh
        self.largest[...] = largest

    def finish(self, out: Floats) -> None:
        np.divide(self.values.reshape(out.shape), self.total.reshape(*out.shape[:2], 1), out=out)


# -- rows that come alone -----------------------------------------------------------------------------------------


def attend_rows(workers: Workers, queries: Floats, places: Sequence[tuple[Stored, int]], out: Floats) -> None:
    """Queries and out: (n, heads * head_dim); each row with what is stored of its sequence, and its position."""
    parts: list[list[_Part]] = []
    jobs: list[Job] = []
    for query, (stored, position) in zip(queries, places, strict=True):
        heads = Heads.of(query[None], stored.cache)
        grouped = query.reshape(heads.kv_heads, heads.group, heads.head_dim)
        spans = _spans(stored.begin(position), position + 1)
        mine = [_Part.empty(grouped) for _ in spans]
        jobs += [
            partial(_attend_span, grouped, stored, heads, *span, part) for span, part in zip(spans, mine, strict=True)
        ]
        parts.append(mine)
    workers.run(jobs)
    for row, mine in zip(out, parts, strict=True):
        _combine(mine, row)


def _spans(begin: int, end: int) -> list[tuple[int, int]]:
    """Keys begin .. end - 1, cut at the multiples of ROW_SPAN."""
    starts = range(begin - begin % ROW_SPAN, end, ROW_SPAN)
    return [(max(start, begin), min(start + ROW_SPAN, end)) for start in starts]


@frozen
class _Part:
    """One span's softmax: its largest score, its sum and the weighted sum of values, of every head."""

    largest: Floats
    total: Floats
    values: Floats

    @classmethod
    def empty(cls, queries: Floats) -> _Part:
        ones = (*queries.shape[:2], 1)
        return cls(np.empty(ones, np.float32), np.empty(ones, np.float32), np.empty(queries.shape, np.float32))


def _attend_span(
    queries: Floats, stored: Stored, heads: Heads, start: int, end: int, part: _Part, scratch: Scratch
) -> None:
    """One GEMV a head for its scores, and one for its values."""
    width = end - start
    pair = scratch.array("row span", 2, heads.kv_heads, ROW_SPAN, heads.head_dim)[:, :, :width]
    stored.gather(slice(None), start, end, pair)
    scores = scratch.array("row scores", heads.kv_heads, heads.group, ROW_SPAN)[:, :, :width]
    scaled = np.multiply(queries, np.float32(stored.sight.scale), out=scratch.array("row queries", *queries.shape))
    np.matmul(pair[0][:, None], scaled[..., None], out=scores[..., None])
    np.maximum.reduce(scores, axis=-1, keepdims=True, out=part.largest)
    scores -= part.largest
    np.exp(scores, out=scores)
    np.add.reduce(scores, axis=-1, keepdims=True, out=part.total)
    np.matmul(scores[:, :, None], pair[1][:, None], out=part.values[:, :, None])


def _combine(parts: list[_Part], out: Floats) -> None:
    """In order of spans; one span alone goes the same way."""
    largest = parts[0].largest
    for part in parts[1:]:
        largest = np.maximum(largest, part.largest)
    total = np.zeros_like(largest)
    values = np.zeros_like(parts[0].values)
    for part in parts:
        kept = np.exp(part.largest - largest)
        total += part.total * kept
        values += part.values * kept
    np.divide(values, total, out=out.reshape(values.shape))
