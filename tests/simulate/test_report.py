"""Figures of a run, and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.config import SchedulerSettings
from strata.errors import ConfigError
from strata.simulate import Machine, TraceRequest, laptop, simulate
from strata.simulate.plot import MOST_POINTS, _tail, can_plot, plot
from strata.simulate.report import Report, Row, Spread, report, table

SETTINGS = SchedulerSettings(short_tokens=100)
COST = laptop()


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert Spread.of(range(1, 101)) == Spread(50, 95, 99, 100)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0)
    assert Spread.of([2.0, 1.0]).p50 == 1.0


def test_short_and_long_ones_have_a_row_each_beside_all_and_an_empty_class_none() -> None:
    trace = [TraceRequest(0.0, 50, 10), TraceRequest(60_000.0, 500, 10), TraceRequest(120_000.0, 50, 10)]
    run = simulate(trace, SETTINGS, Machine(COST, pages=100))
    made = report("batch", run, SETTINGS, COST)
    assert {row.requests: row.count for row in made.rows} == {"all": 3, "short": 2, "long": 1}
    assert made.rows[0].slowdown.max == pytest.approx(1.0)
    run = simulate(trace[:1], SETTINGS, Machine(COST, pages=100))
    assert [row.requests for row in report("batch", run, SETTINGS, COST).rows] == ["all", "short"]


def test_slowdown_is_the_time_as_a_multiple_of_that_alone() -> None:
    trace = [TraceRequest(0.0, 50, 10), TraceRequest(0.0, 50, 10)]
    fifo = SchedulerSettings(max_running=1, preempt="off")
    made = report("fifo", simulate(trace, fifo, Machine(COST, pages=100)), fifo, COST)
    assert made.rows[0].slowdown.p50 == pytest.approx(1.0)
    assert made.rows[0].slowdown.max == pytest.approx(2.0, rel=0.05)


def test_refused_ones_are_counted_and_are_in_no_figure() -> None:
    trace = [TraceRequest(0.0, 50, 10), TraceRequest(0.0, 50_000, 10)]
    made = report("batch", simulate(trace, SETTINGS, Machine(COST, pages=4)), SETTINGS, COST)
    assert made.refused == 1
    assert made.rows[0].count == 1


def test_the_table_has_a_line_for_each_row_and_its_columns_stand_under_their_names() -> None:
    trace = [TraceRequest(0.0, 50, 10), TraceRequest(60_000.0, 500, 10)]
    made = report("batch", simulate(trace, SETTINGS, Machine(COST, pages=100)), SETTINGS, COST)
    titles, head, *lines = table([made, made])
    assert len(lines) == 6
    assert {len(line) for line in lines} == {len(titles)} == {len(head)}
    for title, names in (("first token (s)", "p50 p95 p99 max"), ("gap (s)", "p99 max"), ("slowdown", "p50 p99 max")):
        assert title in titles
        assert names in " ".join(head.split())
    assert [line[: len("batch")] for line in lines] == ["batch"] * 6


def test_the_table_fits_a_terminal_of_100_columns_with_hours_of_waiting_and_a_million_requests() -> None:
    spread = Spread(999.9, 12_345.6, 23_456.7, 34_567.8)
    row = Row(policy="preempt", requests="short", count=1_000_000, ttft_s=spread, gap_s=spread, slowdown=spread)
    whole = {
        "rows": (row, row),
        "refused": 0,
        "ended_at_s": 1.0,
        "busy": 1.0,
        "parks": {},
        "read_tokens": 1,
        "cached_tokens": 1,
    }
    assert max(len(line) for line in table([Report(policy="preempt", **whole)])) <= 100


def test_a_line_of_many_points_is_thinned_and_keeps_its_ends() -> None:
    values = [float(n) for n in range(1, 100_001)]
    x, y = _tail(values)
    assert len(x) <= 2 * MOST_POINTS
    assert (x[0], x[-1]) == (values[0], values[-1])
    assert y[-1] == pytest.approx(0.001)


def test_a_picture_is_drawn_or_it_is_said_how_to_get_what_draws_it(tmp_path: Path) -> None:
    figures = {"time (s)": {"batch": {"short": [0.1, 0.2], "long": [1.0]}}}
    path = tmp_path / "p.png"
    if can_plot():
        plot(path, figures)
        assert path.read_bytes().startswith(b"\x89PNG")
        with pytest.raises(ConfigError, match="can't be written"):
            plot(tmp_path / "p.nothing", figures)
    else:
        with pytest.raises(ConfigError, match="pip install matplotlib"):
            plot(path, figures)
