"""A picture of some runs.  Draws with matplotlib, which need not be there; knows no scheduler and no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any, Final

from strata.errors import ConfigError

HOW_TO_GET_IT: Final = "a picture needs matplotlib: pip install matplotlib"
MOST_POINTS: Final = 2000
"""A line of more points looks the same and takes megabytes."""


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def plot(path: Path, figures: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> None:
    """Write a picture: for each figure one panel, in it a line for each policy and class of requests.

    `figures`: by title, then policy, then class.  The kind of file is by its ending.  Raises ConfigError.
    """
    if not can_plot():
        raise ConfigError("plot", HOW_TO_GET_IT)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(figures), 4.5), layout="constrained")
    panels = figure.subplots(1, len(figures), squeeze=False)[0]
    for panel, (title, policies) in zip(panels, figures.items(), strict=True):
        _panel(panel, title, policies)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as problem:
        raise ConfigError("plot", f"{path} can't be written ({problem})") from None


def _panel(panel: Any, title: str, policies: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """How many of the requests (of 100) are above a value: a log scale on both axes shows the worst as well."""
    for number, (policy, classes) in enumerate(policies.items()):
        for name, style in (("short", "-"), ("long", "--")):
            values = sorted(value for value in classes.get(name, ()) if not isnan(value) and value > 0)
            if values:
                panel.plot(*_tail(values), style, color=f"C{number}", label=f"{policy}, {name} ({len(values):,})")
    panel.set(xscale="log", yscale="log", xlabel=title, ylabel="requests above it (%)", ylim=(None, 110))
    panel.grid(visible=True, which="major", alpha=0.3)
    panel.legend(fontsize="small")


def _tail(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Values, and the share of all that are at least so large (%)."""
    count = len(values)
    places = range(count) if count <= MOST_POINTS else _thinned(count)
    return [values[at] for at in places], [100 * (count - at) / count for at in places]


def _thinned(count: int) -> list[int]:
    """Some of the places, the closer together the nearer to the end: there a log scale looks closest."""
    half = MOST_POINTS // 2
    evenly = {at * (count - 1) // half for at in range(half + 1)}
    last = {count - 1 - int(count ** (at / half)) + 1 for at in range(half + 1)}
    return sorted(at for at in evenly | last if 0 <= at < count)
