"""What a device does at most, as measured: how fast it copies its memory, and how fast it multiplies large matrices.

A room of its own because any operation can be held against these, whatever it is: it takes as long at least as what
it reads takes to be read, and as long as what it computes takes to be computed
(https://doi.org/10.1145/1498765.1498785, the roofline model).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from strata.errors import DeviceMissing
from strata.models.ops import Roof

Measure = Callable[[Callable[[int], Any]], Sequence[float]]
"""Seconds that something takes, again and again."""

MEMORY, ARITHMETIC = "memory", "arithmetic"

ABOVE: Final[Mapping[str, str]] = {
    MEMORY: "what is read was in a cache, or reading alone is faster than copying",
    ARITHMETIC: "sums are done faster than in the large product",
}
"""Why an operation may be faster than what holds it up allows."""


class Roofs:
    """The best of each that was measured: what a busy machine makes slower is no roof."""

    def __init__(self, roof: Roof) -> None:
        self._roof = roof
        self._bytes_per_s = 0.0
        self._sums_per_s: dict[bool, float] = {}
        """Of rows that are read together, and of those that come alone; where there is a roof of these."""
        self.left_out: list[str] = []

    def measure(self, seconds: Measure) -> Iterator[Mapping[str, Any]]:
        """A row of the table for each."""
        nbytes = self._roof.copy()
        samples = seconds(lambda _n: self._roof.copy())
        self._bytes_per_s = nbytes / min(samples)
        yield _row("a large copy", samples, MEMORY, gb_per_s=self._bytes_per_s / 1e9)
        measured: dict[str, float] = {}
        for together in (False, True):
            try:
                what, sums = self._roof.multiply(together)
            except DeviceMissing as why:
                self.left_out.append(f"a large product, so shares are of the memory's roof alone: {why}")
                return
            if what not in measured:
                samples = seconds(partial(self._multiply, together))
                measured[what] = sums / min(samples)
                yield _row(f"a large product ({what})", samples, ARITHMETIC, gflop_per_s=measured[what] / 1e9)
            self._sums_per_s[together] = measured[what]

    def _multiply(self, together: bool, _n: int) -> None:
        self._roof.multiply(together)

    def bound(self, nbytes: int, sums: int, *, together: bool) -> tuple[str, float]:
        """Which of them holds such an operation up, and how many seconds it takes at least."""
        reading = nbytes / self._bytes_per_s
        computing = sums / self._sums_per_s[together] if together in self._sums_per_s else 0.0
        return (ARITHMETIC, computing) if computing > reading else (MEMORY, reading)


def above(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """A line that says why shares are above a hundred, where some of them are."""
    bounds = {row["bound"] for row in rows if round(row["of_roof"], 1) > 100}
    why = "; ".join(f"{text} ({bound})" for bound, text in ABOVE.items() if bound in bounds)
    return (f"above 100 % of the roof: {why}",) if why else ()


def _row(what: str, samples: Sequence[float], bound: str, **figures: float) -> Mapping[str, Any]:
    empty = {"context": 0, "rows": 0, "gb_per_s": None, "gflop_per_s": None}
    told = {"what": what, "us": 1e6 * min(samples), "of_roof": 100.0, "bound": bound}
    return empty | told | figures | {"samples": [1e6 * one for one in samples]}
