"""What goes wrong with one sequence fails that one alone; what goes wrong with the device ends the engine."""

from __future__ import annotations

import attrs
import pytest
from drive import CONTEXT, GREEDY, PAGE, PAGES, Drive, always, prompt
from toy_model import BREAKS_DECODE, BREAKS_READ, GIVES_NAN, LOSES_DEVICE, VOCAB, Stopwatch, ToyModel

from strata.engine.holdings import Usage
from strata.errors import DeviceFault
from strata.messages import (
    Decoded,
    Grant,
    Open,
    Sampling,
    Seq,
    SeqFailed,
)

ONE, TWO, THREE, FOUR = Seq(1), Seq(2), Seq(3), Seq(4)
EMPTY = Usage(sequences=0, pages=0, half_chunks=0, workspaces_free=2)


def beside_a_healthy_one(sampling: Sampling, tokens: tuple[int, ...] = ()) -> Drive:
    """Sequence 2 decodes; sequence 1 joins it, with this sampling or prompt."""
    drive = Drive()
    drive.open(TWO, prompt(2, 10), attrs.evolve(GREEDY, max_tokens=40))
    drive.step(read=TWO)
    drive.until_written(TWO, 3)
    drive.open(ONE, tokens or prompt(1, 10), sampling)
    drive.step(TWO, read=ONE)
    drive.run()
    return drive


def healthy_tokens() -> list[int]:
    drive = Drive()
    drive.open(TWO, prompt(2, 10), attrs.evolve(GREEDY, max_tokens=40))
    drive.step(read=TWO)
    drive.run()
    return drive.tokens(TWO)


@pytest.mark.parametrize(
    ("sampling", "tokens", "words"),
    [
        pytest.param(always(BREAKS_DECODE), (), "a toy can't take this", id="the model raises in a decode step"),
        pytest.param(GREEDY, (3, BREAKS_READ), "a toy can't take this", id="the model raises in a slice"),
        pytest.param(GREEDY, (3, GIVES_NAN), "not finite", id="a first token from logits that are not finite"),
        pytest.param(always(GIVES_NAN), (), "not finite", id="logits that are not finite in a decode step"),
        pytest.param(attrs.evolve(GREEDY, temperature=float("nan")), (), "finite", id="a temperature that is none"),
        pytest.param(attrs.evolve(GREEDY, temperature=-1.0), (), "range", id="a negative temperature"),
        pytest.param(attrs.evolve(GREEDY, logit_bias=((VOCAB, 1.0),)), (), "logit_bias", id="a bias for no token"),
        pytest.param(attrs.evolve(GREEDY, repetition_penalty=1e-45), (), "overflow", id="penalties that overflow"),
        pytest.param(GREEDY, (3, VOCAB), "not one of the model's", id="a token out of range"),
        pytest.param(GREEDY, (3, -1), "not one of the model's", id="a negative token"),
        pytest.param(GREEDY, prompt(1, CONTEXT), "context", id="a prompt that fills the context"),
    ],
)
def test_an_error_in_one_sequence_fails_that_one_only(sampling: Sampling, tokens: tuple[int, ...], words: str):
    """B33: it is said once, nothing of it stays, and the other's tokens are what they would have been."""
    drive = beside_a_healthy_one(sampling, tokens)
    assert words in (drive.error(ONE) or "")
    assert sum(isinstance(fact, SeqFailed) for fact in drive.facts) == 1
    assert drive.tokens(TWO) == healthy_tokens()
    assert drive.engine.usage() == EMPTY
    assert drive.model.open_reads == 0


def test_a_step_in_which_one_row_fails_is_published_with_the_other_rows():
    """B33: the failing row changes neither the step's other rows nor their state."""
    drive = beside_a_healthy_one(always(GIVES_NAN))
    failed = next(i for i, fact in enumerate(drive.facts) if isinstance(fact, SeqFailed))
    assert isinstance(drive.facts[failed + 1], Decoded)
    assert [row.seq for row in drive.facts[failed + 1].rows] == [TWO]


def test_an_empty_prompt_fails():
    drive = Drive()
    drive.tell(Open(ONE, (), GREEDY))
    assert drive.error(ONE) == "the prompt is empty"


@pytest.mark.parametrize(
    ("pages", "known"), [((0,), PAGE + 1), ((0, 1), 20), ((0,), -1), ((), 1), ((0,), 0), ((0, 1), PAGE)]
)
def test_a_known_prefix_that_can_not_be_fails(pages: tuple[int, ...], known: int):
    drive = Drive()
    drive.tell(Open(ONE, prompt(1, 20), GREEDY, pages, known))
    assert "known" in (drive.error(ONE) or "")
    assert drive.engine.usage() == EMPTY


@pytest.mark.parametrize("page", [PAGES, -1, 0])
def test_a_page_that_is_not_there_or_is_held_by_another_fails_who_was_to_get_it(page: int):
    drive = Drive()
    drive.tell(Open(TWO, prompt(2, 10), GREEDY), Grant(TWO, (0, 1)))
    drive.tell(Open(ONE, prompt(1, 10), GREEDY), Grant(ONE, (5, page)))
    assert f"page {page}" in (drive.error(ONE) or "")
    drive.step(read=TWO)
    drive.run()
    assert drive.ended(TWO) == "length"
    drive.tell(Open(THREE, prompt(3, 10), GREEDY), Grant(THREE, (5, 1)))
    assert drive.error(THREE) is None, "neither the failed one nor the ended one holds a page"


def test_a_page_twice_in_one_grant_fails():
    drive = Drive()
    drive.tell(Open(ONE, prompt(1, 10), GREEDY), Grant(ONE, (5, 5)))
    assert "twice" in (drive.error(ONE) or "")
    assert drive.engine.usage() == EMPTY


def test_a_sequence_that_is_opened_twice_fails():
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    drive.tell(Open(ONE, prompt(1, 10), GREEDY))
    assert drive.error(ONE) == "it was opened twice"
    assert drive.engine.usage() == EMPTY


@pytest.mark.parametrize("sampling", [always(LOSES_DEVICE), GREEDY])
def test_a_lost_device_is_no_matter_of_one_sequence(sampling: Sampling):
    drive = Drive()
    drive.open(ONE, (3, LOSES_DEVICE) if sampling is GREEDY else (3, 4), sampling)
    drive.step(read=ONE)
    with pytest.raises(DeviceFault):
        drive.run()


def test_a_model_that_fails_when_a_chunk_begins_keeps_no_workspace():
    class Unready(ToyModel):
        def read(self, *_):
            raise RuntimeError("not today")

    drive = Drive(Unready(Stopwatch()))
    drive.open(ONE, prompt(1, 10))
    drive.step(read=ONE)
    drive.run()
    assert "not today" in (drive.error(ONE) or "")
    assert drive.engine.usage() == EMPTY
