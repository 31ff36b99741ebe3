"""What work costs, and how that is found from samples."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from strata.errors import ConfigError
from strata.simulate import CostModel, laptop, read_cost, write_cost
from strata.simulate.cost import CONTEXT_SPAN, TICKS
from strata.simulate.fit import Shape, SliceSample, StepSample, fit

COST = CostModel(
    measured_on="a test",
    layers=4,
    slice_tokens=128,
    tile_tokens=64,
    slice_s=0.001,
    slice_row_s=0.0001,
    slice_row_position_s=1e-8,
    step_s={1: 0.01, 2: 0.014, 8: 0.02},
    step_row_position_s=1e-6,
)


def test_a_chunk_is_cut_by_layers_and_by_rows_of_whole_tiles() -> None:
    assert COST.rows(1) == 64
    assert COST.rows(65) == 128
    assert COST.slices(1) == COST.slices(128) == 4
    assert COST.slices(129) == 8


def test_times_are_whole_ticks_and_grow_with_what_is_done() -> None:
    for seconds in (COST.slice_seconds(64, 0), COST.slice_seconds(100, 512), COST.step_seconds(3, 7)):
        assert (seconds * TICKS).is_integer()
    assert COST.slice_seconds(64, 0) < COST.slice_seconds(64, 5120) < COST.slice_seconds(128, 5120)
    assert COST.step_seconds(1, 0) < COST.step_seconds(1, 1) < COST.step_seconds(2, 1)


def test_rows_that_were_not_measured_are_on_the_line_through_their_neighbours() -> None:
    flat = msgspec.structs.replace(COST, step_row_position_s=0.0)
    seconds = [flat.step_seconds(rows, 0) for rows in (1, 2, 5, 8, 14)]
    assert seconds == pytest.approx([0.01, 0.014, 0.017, 0.02, 0.026], abs=1 / TICKS)
    lone = msgspec.structs.replace(flat, step_s={1: 0.01})
    assert lone.step_seconds(4, 0) == lone.step_seconds(1, 0)


def test_even_what_costs_nothing_takes_a_tick() -> None:
    free = msgspec.structs.replace(COST, slice_s=0.0, slice_row_s=0.0, slice_row_position_s=0.0)
    assert free.slice_seconds(64, 0) == 1 / TICKS


def test_an_answer_alone_costs_the_sum_of_its_steps() -> None:
    prompt, answer = CONTEXT_SPAN - 3, 40
    steps = [COST.step_seconds(1, (prompt + written) // CONTEXT_SPAN) for written in range(1, answer)]
    assert COST.write_seconds(prompt, answer) == sum(steps)
    assert COST.write_seconds(prompt, 1) == 0


def test_a_fit_finds_the_costs_that_the_samples_were_made_of() -> None:
    slices = [
        SliceSample(rows, position, COST.slice_s + rows * (COST.slice_row_s + position * COST.slice_row_position_s))
        for rows in (64, 96, 128)
        for position in (30, 700, 2000)
    ]
    steps = [
        StepSample(rows, rows * context, COST.step_s[rows] + rows * context * COST.step_row_position_s)
        for rows in (1, 2, 8)
        for context in (30, 700)
    ]
    found = fit("a test", Shape(4, 128, 64), slices, steps)
    of_found, of_cost = msgspec.to_builtins(found), msgspec.to_builtins(COST)
    assert of_found.pop("measured_on") == of_cost.pop("measured_on")
    assert of_found.pop("step_s") == pytest.approx(of_cost.pop("step_s"), rel=1e-6)
    assert of_found == pytest.approx(of_cost, rel=1e-6)


def test_no_cost_is_below_nothing_whatever_was_measured() -> None:
    slices = [SliceSample(64, position, 0.01 - position * 1e-6) for position in (30, 700, 2000, 4000)]
    steps = [StepSample(rows, rows * 100, 0.01 / rows) for rows in (1, 2, 4, 8)]
    found = fit("a test", Shape(4, 128, 64), slices, steps)
    assert all(value >= 0 for name in COST.__struct_fields__ if isinstance(value := getattr(found, name), float))
    assert all(value >= 0 for value in found.step_s.values())
    assert found.slice_seconds(64, 0) == pytest.approx(0.0085, rel=0.2)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        fit("a test", Shape(4, 128, 64), [SliceSample(64, 1, 0.1)], [])


def test_a_cost_model_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    write_cost(tmp_path / "cost.json", COST)
    assert read_cost(tmp_path / "cost.json") == COST


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"layers": 0}', '{"what": 1}'])
def test_a_file_that_is_no_cost_model_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "cost.json").write_text(content)
    with pytest.raises(ConfigError, match=r"cost\.json"):
        read_cost(tmp_path / "cost.json")
    with pytest.raises(ConfigError, match="can't be read"):
        read_cost(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="can't be written"):
        write_cost(tmp_path / "no" / "where.json", COST)


def test_the_shipped_costs_are_those_of_a_small_machine() -> None:
    cost = laptop()
    assert "SmolLM2-135M" in cost.measured_on
    assert 0.1 < cost.read_seconds(512, 512) < 10
    assert 0.001 < cost.step_seconds(1, 0) < 0.2
