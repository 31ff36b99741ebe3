"""Figures that were measured: a table of them, and where each came from.  Measures and prints nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen


@frozen
class Column:
    """One figure of every row, or what the row is about."""

    key: str
    title: str
    """For people, with the unit."""
    shown: str = ""
    """How the value is written, as `format` takes it; empty: the column says what the row is about."""
    drawn: bool = False
    """Whether a picture shows it."""


@frozen(kw_only=True)
class Report:
    """What one benchmark found."""

    what: str
    model: str
    device: str
    repeats: int
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    """By the keys of the columns; None: not to be had.  `samples` has the values that a median is of."""
    left_out: tuple[str, ...] = ()
    """What could not be measured here, and why."""
    notes: tuple[str, ...] = ()
    """What must be known to read the figures."""

    def as_json(self) -> dict[str, Any]:
        return attrs.asdict(self, filter=lambda field, _: field.name != "columns")

    def cells(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """A row as people read it."""
        return tuple("-" if row[one.key] is None else format(row[one.key], one.shown) for one in self.columns)

    def label(self, row: Mapping[str, Any]) -> str:
        """What the row is about, in a line."""
        first, *others = (column for column in self.columns if not column.shown)
        return ", ".join([str(row[first.key]), *(f"{row[one.key]} {one.title}" for one in others)])
