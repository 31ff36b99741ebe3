"""The table of states, and the diagram that is drawn from it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from strata.errors import IllegalTransition
from strata.scheduling.lifecycle import TABLE, Event, State, diagram, follow

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
MARKER = "<!-- lifecycle -->"


def test_what_the_table_does_not_have_is_refused_by_both_its_names():
    for state, event in product(State, Event):
        if event in TABLE[state]:
            assert follow(state, event) is TABLE[state][event]
        else:
            with pytest.raises(IllegalTransition, match=f"{event}$") as refused:
                follow(state, event)
            assert str(state) in str(refused.value)


def test_done_is_the_only_state_without_an_end_and_can_be_reached_from_all_others():
    assert not TABLE[State.DONE]
    for state in set(State) - {State.DONE}:
        assert follow(state, Event.ENDED) is State.DONE


def test_the_diagram_in_the_docs_is_the_one_drawn_from_the_table():
    _, drawn, _ = DESIGN.read_text(encoding="utf-8").split(MARKER)
    assert drawn == f"\n```mermaid\n{diagram()}\n```\n"


def test_the_diagram_has_one_line_for_each_step_of_the_table():
    arrows = [line for line in diagram().splitlines() if "-->" in line]
    assert len(arrows) == sum(len(followers) for followers in TABLE.values()) + 2
