"""A picture of a report: bars, a panel for each figure.  Draws with matplotlib, which need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata.bench.report import Column, Report
from strata.errors import ConfigError
from strata.simulate.plot import HOW_TO_GET_IT, can_plot


def must_plot() -> None:
    """Raises ConfigError where nothing can be drawn; to be asked before the work, not after it."""
    if not can_plot():
        raise ConfigError("plot", HOW_TO_GET_IT)


def plot(path: Path, report: Report) -> None:
    """The kind of file is by its ending.  Raises ConfigError."""
    must_plot()
    from matplotlib.figure import Figure

    drawn = [column for column in report.columns if column.drawn]
    figure = Figure(figsize=(7 * len(drawn), 1.5 + 0.4 * len(report.rows)), layout="constrained")
    panels = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for panel, column in zip(panels, drawn, strict=True):
        _panel(panel, column, report)
    figure.suptitle(f"{report.what}: {report.model}, {report.device}")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as problem:
        raise ConfigError("plot", f"{path} can't be written ({problem})") from None


def _panel(panel: Any, column: Column, report: Report) -> None:
    places = range(len(report.rows))
    values = [row[column.key] or 0.0 for row in report.rows]
    bars = panel.barh(places, values)
    panel.bar_label(bars, [format(value, column.shown) for value in values], padding=3)
    panel.set_yticks(places, [report.label(row) for row in report.rows])
    panel.set(xlabel=column.title)
    panel.margins(x=0.25)
    if panel.get_subplotspec().is_first_col():
        # The panels share this axis: turned once, the first row is at the top of all.
        panel.invert_yaxis()
