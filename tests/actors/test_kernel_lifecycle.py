"""The table of an actor's states, and what is drawn from it."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from strata.actors.kernel.lifecycle import TABLE, ActorChange, ActorEvent, ActorState, Life, diagram, follow
from strata.errors import IllegalTransition

STEPS = [(state, event, target) for state, steps in TABLE.items() for event, target in steps.items()]
MISSTEPS = [(state, event) for state, event in product(ActorState, ActorEvent) if event not in TABLE[state]]


@pytest.mark.parametrize(("state", "event", "target"), STEPS)
def test_each_step_of_the_table_can_be_taken(state: ActorState, event: ActorEvent, target: ActorState) -> None:
    assert follow(state, event) is target


@pytest.mark.parametrize(("state", "event"), MISSTEPS)
def test_any_other_step_is_an_error_that_names_both(state: ActorState, event: ActorEvent) -> None:
    with pytest.raises(IllegalTransition) as raised:
        follow(state, event)
    assert f"an actor that is {state} can't be {event}" in str(raised.value)


def test_only_stopped_and_failed_are_ends() -> None:
    assert {state for state in ActorState if state.over} == {ActorState.STOPPED, ActorState.FAILED}


def test_an_end_is_reached_from_every_other_state() -> None:
    for state in ActorState:
        assert state.over or {ActorEvent.ENDED, ActorEvent.FAILED} <= TABLE[state].keys()


def test_a_life_remembers_each_state_with_its_time_and_reason() -> None:
    life = Life(1.0)
    life.step(ActorEvent.STARTED, 2.0)
    life.step(ActorEvent.FAILED, 3.5, "ValueError: no")
    assert life.history == (
        ActorChange(ActorState.STARTING, 1.0),
        ActorChange(ActorState.RUNNING, 2.0),
        ActorChange(ActorState.FAILED, 3.5, "ValueError: no"),
    )
    assert (life.state, life.since) == (ActorState.FAILED, 3.5)


def test_an_illegal_step_leaves_a_life_as_it_was() -> None:
    life = Life(1.0)
    life.step(ActorEvent.ENDED, 2.0)
    with pytest.raises(IllegalTransition):
        life.step(ActorEvent.STARTED, 3.0)
    assert [change.state for change in life.history] == [ActorState.STARTING, ActorState.STOPPED]


def test_the_diagram_in_the_docs_is_the_table() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
    drawn = re.search(r"<!-- actor-states -->\n```mermaid\n(.*?)\n```\n<!-- /actor-states -->", docs, re.DOTALL)
    assert drawn is not None
    assert drawn[1] == diagram()
