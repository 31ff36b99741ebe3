"""Tokens that compiled kernels draw are those of the definition, whichever instruction set computes."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from compiled_cases import kernels, pool, using
from draw_cases import EVERYTHING, LARGEST, draws, edges, logits, many_logits, weighed
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.cpu.compiled import CompiledOps
from strata.cpu.ops import CpuOps
from strata.draws import ALL, Draw
from strata.engine.drawing import WHOLE, drawn, scale_of


@pytest.fixture(params=kernels.sets())
def ops(request: pytest.FixtureRequest) -> Iterator[CompiledOps]:
    with using(request.param):
        made = CompiledOps(2, request.param)
        yield made
        made.close()


def test_every_draw_of_a_few_tokens_is_that_of_the_definition(ops: CompiledOps) -> None:
    @settings(max_examples=300, deadline=None)
    @given(logits(st.integers(1, 40)), draws, st.integers(0, 2**31))
    def check(row: np.ndarray, draw: Draw, position: int) -> None:
        assert ops.draw(row.reshape(1, -1), [draw], [position]) == [drawn(row, draw, position)]

    check()


def test_a_token_at_an_edge_belongs_to_the_side_that_the_definition_says(ops: CompiledOps) -> None:
    for rows, draw, token in edges():
        assert ops.draw(rows, [draw], [0]) == [token]


def test_weights_are_those_of_the_definition_to_the_last_bit(ops: CompiledOps) -> None:
    rows, told, tokens = weighed()
    assert ops.draw(rows, told, [0] * len(told)) == tokens


def test_draws_of_many_tokens_are_those_of_the_definition(ops: CompiledOps) -> None:
    """Some of them are equal where a cut falls; rows lie apart."""

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 999), st.sampled_from([255, 256, 257, 5000]), st.sampled_from([0.01, 2.0]), st.data())
    def check(seed: int, count: int, step: float, data: st.DataObject) -> None:
        wide = many_logits(seed, 3 * (count + 3), 4.0, step).reshape(3, -1)
        rows = wide[:, 2 : 2 + count]
        told = data.draw(st.lists(draws.map(lambda one: attrs.evolve(one, keep=one.keep * 40)), min_size=3, max_size=3))
        assert ops.draw(rows, told, range(3)) == [drawn(*one) for one in zip(rows, told, range(3), strict=True)]

    check()


@pytest.mark.parametrize("where", [0, 255, 256, 999])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_number_that_is_not_finite_is_left_to_the_host(ops: CompiledOps, bad: float, where: int) -> None:
    rows = many_logits(1, 3000, 3.0, 0.1).reshape(3, -1)
    rows[1, where] = bad
    for draw in (EVERYTHING, LARGEST):
        assert ops.draw(rows, [draw] * 3, [5, 6, 7]) == [drawn(rows[0], draw, 5), None, drawn(rows[2], draw, 7)]


def test_what_is_not_to_be_drawn_is_not(ops: CompiledOps) -> None:
    rows = many_logits(1, 30, 3.0, 0.1).reshape(3, -1)
    assert ops.draw(rows, [None, LARGEST, None], [0, 1, 2]) == [None, int(rows[1].argmax()), None]
    assert ops.draw(rows[:0], [], []) == []


def test_a_draw_that_would_leave_nothing_or_of_another_number_of_rows_is_refused() -> None:
    row, usual = many_logits(1, 9, 3.0, 0.1).reshape(1, -1), (1.0, 0, ALL, 0, 0, 0)
    with pool(1) as threads:
        for wrong in (
            (1.0, 0, ALL, WHOLE + 1, 0, 0),
            (1.0, -1, ALL, 0, 0, 0),
            (float("nan"), 0, ALL, 0, 0, 0),
            (float("inf"), 0, ALL, 0, 0, 0),
            (-1.0, 0, ALL, 0, 0, 0),
        ):
            with pytest.raises(ValueError, match="leaves nothing"):
                kernels.draw(threads, row, [wrong])
        for draws_of_others in ([], [usual, usual], (usual,)):
            with pytest.raises(ValueError, match="sizes"):
                kernels.draw(threads, row, draws_of_others)
        with pytest.raises(TypeError):
            kernels.draw(threads, row, [(1.0, 0)])


def test_numpy_leaves_all_to_the_host_but_the_largest() -> None:
    """Of equals the first."""
    ops, rows = CpuOps(1), np.array([[1, 3, 3, -2], [-5, -4, -9, -4]], np.float32)
    assert ops.draw(rows, [LARGEST, LARGEST], [0, 1]) == [1, 1]
    assert ops.draw(rows, [None, Draw(scale=scale_of(1.0), keep=2, nucleus=ALL, least=0, seed=0)], [0, 1]) == [
        None,
        None,
    ]
    for wrong in (np.nan, np.inf, -np.inf):
        for place in range(4):
            spoilt = rows.copy()
            spoilt[0, place] = wrong
            assert ops.draw(spoilt, [LARGEST, LARGEST], [0, 1]) == [None, 1]
    ops.close()


def test_a_list_that_changes_while_it_is_read_does_no_harm() -> None:
    row = many_logits(1, 9, 3.0, 0.1).reshape(1, -1).repeat(3, axis=0)

    class Hostile:
        def __float__(self) -> float:
            told.clear()
            return 1.0

    told: list[object] = [(Hostile(), 1, ALL, 0, 0, 0), None, (1.0, 1, ALL, 0, 0, 0)]
    with pool(1) as threads:
        assert kernels.draw(threads, row, told) == [int(row[0].argmax()), None, int(row[2].argmax())]
        with pytest.raises(TypeError, match="a draw is a tuple"):
            kernels.draw(threads, row[:1], [[1.0, 1, ALL, 0, 0, 0]])
