"""Offered tokens change when a token comes, never which, and no bit of what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
from drive import CHUNK, GREEDY, PAGE, Drive, prompt
from parity import Disturb, another, cached, llama, nothing, numbers, there_and_back
from toy_model import BREAKS_DECODE, END, GIVES_NAN, ToyModel

from strata.engine.trace import Trace, diff
from strata.messages import Decoded, Sampling, Seq, SeqFailed, Wants

FEW = tuple((token, 50.0) for token in (5, 6, 7))
"""Only these are written, so that pairs come again, and are followed now by the same and now by another."""

BASE = attrs.evolve(GREEDY, logit_bias=FEW, max_tokens=40)
SAMPLINGS: dict[str, Sampling] = {
    "greedy": BASE,
    "seeded": attrs.evolve(BASE, temperature=0.9, top_p=0.95, seed=4),
    "penalties": attrs.evolve(BASE, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    "log-probabilities": attrs.evolve(BASE, temperature=1.2, seed=9, logprobs=2),
    "an end in a window": attrs.evolve(BASE, logit_bias=((6, 50.0), (END, 48.5)), ignore_eos=False, min_tokens=9),
    "one token": attrs.evolve(BASE, max_tokens=1),
    "two tokens": attrs.evolve(BASE, max_tokens=2),
}
TEXT = (*prompt(1, CHUNK + 9), *(5, 6, 7, 5, 5, 6, 6, 7, 7, 5))


class Told:
    """What one request went through: its rows, and a line for each slice and token with the state after it."""

    def __init__(self, drive: Drive, path: Path, seq: Seq) -> None:
        self.rows = [attrs.evolve(row, seq=Seq(0)) for row in drive.rows(seq)]
        own = [line for line in map(json.loads, path.read_text().splitlines()) if line["seq"] == seq]
        for line in own:
            del line["seq"]
            # One that offers nothing has none.
            line.get("state", {}).pop("drafter", None)
        self.lines = [line for line in own if line["what"] != "window"]
        self.windows = [line for line in own if line["what"] == "window"]
        self.accepted = sum(line["accepted"] for line in self.windows)

    def same(self, other: Told) -> None:
        assert self.rows == other.rows
        assert self.lines == other.lines


Making = Callable[..., tuple[Drive, Path]]


@pytest.fixture(params=["toy", "llama"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Making]:
    with ExitStack() as stack:

        def made(speculate: int, **named: Any) -> tuple[Drive, Path]:
            path = tmp_path / str(next(numbers))
            model = ToyModel() if request.param == "toy" else llama(request.getfixturevalue("tiny_model_path"))
            drive = Drive(model, speculate=speculate, trace=Trace(path), **named)
            stack.callback(drive.engine.close)
            return drive, path

        yield made


def run(made: tuple[Drive, Path], sampling: Sampling = BASE, disturb: Disturb | None = None, **opening: Any) -> Told:
    """A request from its opening to its end; `disturb` comes after each slice and step."""
    drive, path = made
    seq = Seq(next(numbers))
    drive.open(seq, TEXT, sampling, **opening)
    drive.step(read=seq)
    while drive.advance() and not drive.ended(seq):
        if disturb is not None:
            disturb(drive, seq)
            drive.step(read=seq)
        if any(fact == Wants(seq) for fact in drive.facts[-2:]):
            drive.grant(seq, PAGE)
    return Told(drive, path, seq)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_rows_and_states_are_those_of_a_run_without_offers(make: Making, sampling: Sampling):
    """Greedy and sampled, with penalties and log-probabilities, to an end token or to the last that is allowed."""
    plain = run(make(0), sampling)
    for limit in (1, 3, 7):
        offering = run(make(limit), sampling)
        offering.same(plain)
        assert bool(offering.accepted) == (sampling.max_tokens > 2)
    assert not plain.windows


@pytest.mark.parametrize("disturb", [nothing, another(1), there_and_back], ids=["parked", "another", "moved"])
def test_parks_and_moves_after_every_step_change_no_bit(make: Making, disturb: Disturb):
    plain = run(make(0), SAMPLINGS["seeded"])
    disturbed = run(make(3), SAMPLINGS["seeded"], disturb)
    disturbed.same(plain)
    assert disturbed.accepted


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_several_that_decode_together_write_what_each_writes_alone(make: Making, count: int):
    """Few share out what rows there are; where there are many, nothing is offered."""
    drive, path = make(3)
    seqs = [Seq(next(numbers)) for _ in range(count)]
    samplings = [attrs.evolve(SAMPLINGS["seeded"], seed=seed, max_tokens=12 + seed) for seed in range(count)]
    for seq, sampling in zip(seqs, samplings, strict=True):
        drive.open(seq, TEXT[:20], sampling)
        drive.step(read=seq)
        drive.until_written(seq, 1)
        drive.step()
    before = len(drive.facts)
    drive.step(*seqs)
    drive.run()
    for seq, sampling in zip(seqs, samplings, strict=True):
        alone, its_path = make(0)
        alone.open(Seq(1), TEXT[:20], sampling)
        alone.step(read=Seq(1))
        alone.run()
        Told(drive, path, seq).same(Told(alone, its_path, Seq(1)))
    first = next(fact for fact in drive.facts[before:] if isinstance(fact, Decoded))
    assert first.drafted <= max(0, 8 - count)
    assert sum(fact.accepted for fact in drive.facts if isinstance(fact, Decoded)) > 0


def test_a_known_beginning_and_a_replay_change_no_bit(make: Making):
    plain = run(make(0))
    made = make(3)
    hit = run(made, cached=cached(made[0], CHUNK, TEXT))
    assert (hit.rows, hit.lines[-40:]) == (plain.rows, plain.lines[-40:])
    replayed = run(make(3), written=[row.token for row in plain.rows[:15]])
    assert replayed.rows == plain.rows[15:]
    assert replayed.lines == plain.lines
    assert hit.accepted
    assert replayed.accepted


@pytest.mark.parametrize("page", [1, 3, PAGE])
def test_nothing_is_offered_beyond_the_pages_that_are_held(make: Making, page: int):
    """So it asks for a page as often as one that offers nothing."""
    runs = []
    for limit in (0, 7):
        made = make(limit, page=page, pages=400)
        told = run(made, hold=len(TEXT))
        runs.append((told.rows, told.lines, sum(isinstance(fact, Wants) for fact in made[0].facts)))
    assert runs[0] == runs[1]


def test_an_answer_ends_with_the_context(make: Making):
    room = len(TEXT) + 33
    plain, offering = (run(make(limit, context=room)) for limit in (0, 7))
    offering.same(plain)
    assert (len(plain.rows), plain.rows[-1].ended) == (33, "length")
    assert offering.accepted


def test_a_fact_counts_what_was_offered_and_accepted_and_a_trace_says_where(make: Making):
    made = make(3)
    told = run(made)
    decoded = [fact for fact in made[0].facts if isinstance(fact, Decoded)]
    assert sum(fact.drafted for fact in decoded) == sum(line["offered"] for line in told.windows)
    assert sum(fact.accepted for fact in decoded) == told.accepted
    assert all(len(fact.rows) == 1 + fact.accepted for fact in decoded)
    assert len(decoded) == len(told.rows) - told.accepted
    positions = [line["position"] for line in told.lines]
    assert all(line["position"] in positions and 0 <= line["accepted"] <= line["offered"] <= 3 for line in told.windows)


def test_other_windows_are_no_difference_between_two_traces(make: Making):
    (one, a), (other, b) = make(3), make(1)
    for drive in (one, other):
        drive.open(Seq(1), TEXT, BASE)
        drive.step(read=Seq(1))
        drive.run()
    assert a.read_text() != b.read_text()
    assert diff(a, b) is None


def breaking(last: int, sampling: Sampling, text: tuple[int, ...]) -> Mapping[int, tuple[list[Any], list[str]]]:
    """What comes of it with no offers and with some."""
    said = {}
    for limit in (0, last):
        drive = Drive(ToyModel(), speculate=limit)
        drive.open(Seq(1), text, sampling)
        drive.step(read=Seq(1))
        drive.run()
        errors = [fact.error for fact in drive.facts if isinstance(fact, SeqFailed)]
        said[limit] = (drive.rows(Seq(1)), errors)
        assert drive.engine.usage().sequences == 0
    return said


def test_an_offered_token_that_breaks_the_model_fails_nobody():
    pairs = [token for one in (5, 6, 7) for other in (5, 6, 7) for token in (one, other, BREAKS_DECODE)]
    said = breaking(3, BASE, tuple(pairs))
    assert said[3] == said[0]
    assert (len(said[0][0]), said[0][1]) == (40, [])


def test_what_was_accepted_before_a_row_that_can_not_be_sampled_is_said():
    """B33: as without offers, token by token."""
    bias = ((5, 50.0), (6, 50.0), (GIVES_NAN, 101.0))
    for seed in range(6):
        text = (*prompt(seed, 20), *(5, GIVES_NAN, 5, 6, GIVES_NAN, 6, 5, 5, 6, 6))
        said = breaking(7, attrs.evolve(BASE, logit_bias=bias, temperature=1.0, seed=seed), text)
        assert said[7] == said[0]
        assert said[0][1] == ["the model's logits are not finite"]
