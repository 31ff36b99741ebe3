"""Numbers that a flag takes.  Knows no flag.

A room of its own, as several commands take such numbers and click's own range lets nan through: it is neither below
one end nor above the other.
"""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A finite number between the ends; what is neither is refused by its flag's name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
