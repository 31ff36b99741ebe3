"""Tokens that the card draws are those of the definition on the host, bit for bit."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from draw_cases import EVERYTHING, LARGEST, draws, edges, logits, many_logits, weighed
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.draws import Draw
from strata.engine.drawing import drawn
from strata.gpu.drawing import Drawing
from strata.gpu.ops import GpuOps


def test_every_draw_of_a_few_tokens_is_that_of_the_definition(card: GpuOps) -> None:
    @settings(max_examples=400, deadline=None)
    @given(logits(st.integers(1, 40)), draws, st.integers(0, 2**31))
    def check(row: np.ndarray, draw: Draw, position: int) -> None:
        assert card.draw(card.stored(row.reshape(1, -1)), [draw], [position]) == [drawn(row, draw, position)]

    check()


def test_a_token_at_an_edge_belongs_to_the_side_that_the_definition_says(card: GpuOps) -> None:
    for rows, draw, token in edges():
        assert card.draw(card.stored(rows), [draw], [0]) == [token]


def test_weights_are_those_of_the_definition_to_the_last_bit(card: GpuOps) -> None:
    rows, told, tokens = weighed()
    assert card.draw(card.stored(rows), told, [0] * len(told)) == tokens


def test_draws_of_many_tokens_are_those_of_the_definition(card: GpuOps) -> None:
    """Some of them are equal where a cut falls; rows lie apart."""

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 999), st.sampled_from([255, 256, 257, 4097]), st.sampled_from([0.01, 2.0]), st.data())
    def check(seed: int, count: int, step: float, data: st.DataObject) -> None:
        wide = many_logits(seed, 3 * (count + 3), 4.0, step).reshape(3, -1)
        told = data.draw(st.lists(draws.map(lambda one: attrs.evolve(one, keep=one.keep * 40)), min_size=3, max_size=3))
        rows = wide[:, 2 : 2 + count]
        got = card.draw(card.stored(wide)[:, 2 : 2 + count], told, range(3))
        assert got == [drawn(*one) for one in zip(rows, told, range(3), strict=True)]

    check()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 255, 256, 999])
def test_a_number_that_is_not_finite_leaves_its_row_alone_to_the_host(card: GpuOps, bad: float, where: int) -> None:
    rows = many_logits(1, 3000, 3.0, 0.1).reshape(3, -1)
    rows[1, where] = bad
    for draw in (EVERYTHING, LARGEST):
        assert card.draw(card.stored(rows), [draw] * 3, [5, 6, 7]) == [
            drawn(rows[0], draw, 5),
            None,
            drawn(rows[2], draw, 7),
        ]


def test_more_rows_than_there_is_memory_for_are_drawn_in_goes(card: GpuOps) -> None:
    rows = many_logits(1, 700, 3.0, 0.1).reshape(7, -1)
    told = [None if row == 3 else EVERYTHING for row in range(7)]
    little = Drawing(card._device, card._staging, together=3)
    tokens = [one and drawn(row, one, position) for position, (row, one) in enumerate(zip(rows, told, strict=True))]
    assert little.of(card.stored(rows), told, range(7)) == tokens
