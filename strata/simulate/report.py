"""What came of a run, in figures: waits and slowdown of short and long requests.  Prints nothing itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isnan
from typing import Any, Final

import attrs
from attrs import frozen

from strata.config import SchedulerSettings
from strata.simulate.cost import CostModel
from strata.simulate.run import Run

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


@frozen
class Spread:
    """How one figure is spread over some requests; nearest rank, so each is a value that was seen."""

    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of at least one value."""
        ranked = sorted(values)
        return cls(*(ranked[max(0, ceil(share * len(ranked)) - 1)] for share in PERCENTILES.values()))


@frozen(kw_only=True)
class Row:
    """One class of requests under one policy.  Seconds."""

    policy: str
    requests: str
    """`all`, `short` or `long`: whether prompt and answer together are at most `short_tokens`."""
    count: int
    ttft_s: Spread
    """From arrival to the first token."""
    gap_s: Spread
    """The longest wait of each answer for its next token."""
    slowdown: Spread
    """From arrival to the last token, as a multiple of what it takes alone."""


@frozen(kw_only=True)
class Report:
    """One policy's run."""

    policy: str
    rows: tuple[Row, ...]
    """Classes that nobody is in are left out."""
    refused: int
    ended_at_s: float
    busy: float
    """The engine's share of that time."""
    parks: Mapping[str, int]
    """By reason."""
    read_tokens: int
    cached_tokens: int
    """Of prompts: known by their hash ids, and not read again."""

    def as_json(self) -> dict[str, Any]:
        return attrs.asdict(self)


def report(policy: str, run: Run, settings: SchedulerSettings, cost: CostModel) -> Report:
    served = [at for at in range(len(run.requests)) if not isnan(run.ttft_s[at])]
    classes: dict[str, list[int]] = {"all": served, "short": [], "long": []}
    for at in served:
        request = run.requests[at]
        short = request.input_length + request.output_length <= settings.short_tokens
        classes["short" if short else "long"].append(at)
    slowdowns = slowdown(run, settings, cost)
    statistics = run.statistics
    assert statistics is not None, "of a run that is over"
    return Report(
        policy=policy,
        rows=tuple(_row(policy, name, run, places, slowdowns) for name, places in classes.items() if places),
        refused=run.refused,
        ended_at_s=run.ended_at,
        busy=statistics.engine_s / run.ended_at if run.ended_at else 0.0,
        parks=dict(statistics.parks),
        read_tokens=statistics.read_tokens,
        cached_tokens=statistics.cached_tokens,
    )


def slowdown(run: Run, settings: SchedulerSettings, cost: CostModel) -> list[float]:
    """Of every request, by its place; nan of one that was refused."""
    alone: dict[tuple[int, int], float] = {}
    found = []
    for request, total_s in zip(run.requests, run.total_s, strict=True):
        size = request.input_length, request.output_length
        if size not in alone:
            alone[size] = cost.read_seconds(size[0], settings.chunk_tokens) + cost.write_seconds(*size)
        found.append(total_s / alone[size])
    return found


def _row(policy: str, name: str, run: Run, places: Sequence[int], slowdowns: Sequence[float]) -> Row:
    return Row(
        policy=policy,
        requests=name,
        count=len(places),
        ttft_s=Spread.of(run.ttft_s[at] for at in places),
        gap_s=Spread.of(run.longest_gap_s[at] for at in places),
        slowdown=Spread.of(slowdowns[at] for at in places),
    )


GROUPS: Final = (("", 3), ("first token (s)", 4), ("gap (s)", 2), ("slowdown (times)", 3))
"""Of the table's columns: a title, and over how many."""
COLUMNS: Final = ("policy", "requests", "number", *PERCENTILES, "p99", "max", "p50", "p99", "max")


def table(reports: Sequence[Report]) -> list[str]:
    """Lines for a terminal: the titles, the columns' names, and one for each row."""
    rows = [COLUMNS, *(_cells(row) for one in reports for row in one.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines, titles, first = [""] * len(rows), "", 0
    for title, columns in GROUPS:
        places = range(first, first + columns)
        parts = [" ".join(_padded(row[i], widths[i], left=i < 2) for i in places) for row in rows]
        width = max(len(title), len(parts[0]))
        lines = [f"{line}{part:>{width}}   " for line, part in zip(lines, parts, strict=True)]
        titles += f"{title:>{width}}   "
        first += columns
    return [line.rstrip() for line in (titles, *lines)]


def _padded(cell: str, width: int, *, left: bool) -> str:
    return cell.ljust(width) if left else cell.rjust(width)


def _cells(row: Row) -> tuple[str, ...]:
    ttft, gap, slow = row.ttft_s, row.gap_s, row.slowdown
    figures = (ttft.p50, ttft.p95, ttft.p99, ttft.max, gap.p99, gap.max, slow.p50, slow.p99, slow.max)
    return (row.policy, row.requests, f"{row.count:,}", *(_figure(value) for value in figures))


def _figure(value: float) -> str:
    """As many digits after the point as say something."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 1000 else 0
    return f"{value:,.{digits}f}"
