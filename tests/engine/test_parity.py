"""Whatever happens between: tokens and every part of the state are those of an undisturbed run, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import attrs
import pytest
from drive import CHUNK, Drive, prompt
from toy_model import ToyModel

from strata.cpu.ops import CpuOps
from strata.messages import Sampling, Seq
from strata.models import open_model
from strata.models.architecture import Model
from strata.models.make import make_model

PROMPT = prompt(1, 2 * CHUNK + 20)
SAMPLING = Sampling(temperature=0.8, top_p=0.95, seed=11, repetition_penalty=1.1, ignore_eos=True, max_tokens=7)
OTHERS = attrs.evolve(SAMPLING, seed=5, max_tokens=33)

Fingerprints = list[Mapping[str, str]]
Disturb = Callable[[Drive], None]

numbers = count(100)


class Run:
    """What a request went through: its fingerprint after each slice and step, and its tokens."""

    def __init__(self, drive: Drive, disturb: Mapping[int, Disturb] | None = None) -> None:
        """`disturb`: what comes between two slices or steps; the request is parked for it and resumed."""
        self.prints: Fingerprints = []
        seq = Seq(next(numbers))
        drive.facts.clear()
        drive.open(seq, PROMPT, SAMPLING)
        drive.step(read=seq)
        while drive.advance() and not drive.ended(seq):
            self.prints.append(drive.engine.fingerprint(seq))
            between = (disturb or {}).get(len(self.prints))
            if between:
                between(drive)
                drive.step(read=seq)
        self.tokens = drive.tokens(seq)
        assert len(self.tokens) == SAMPLING.max_tokens


def nothing(drive: Drive) -> None:
    """Parked, and nobody else runs."""
    drive.step()
    assert not drive.advance()


def another(decodes: int) -> Disturb:
    """Another request comes, decodes so many tokens, and leaves; with 0 it is parked in its prompt."""

    def disturb(drive: Drive) -> None:
        seq = Seq(next(numbers))
        drive.open(seq, prompt(2, 20), OTHERS)
        drive.step(read=seq)
        if decodes:
            drive.until_written(seq, decodes)
        else:
            drive.advance()
        drive.close(seq)

    return disturb


def times(repeat: int, disturb: Disturb) -> Disturb:
    """So many parks in a row, with a resume after each that comes to nothing."""

    def disturbed(drive: Drive) -> None:
        for _ in range(repeat):
            disturb(drive)
            drive.step(read=Seq(next(numbers) - 1))

    return disturbed


DISTURBANCES: dict[str, Disturb] = {
    "nothing": nothing,
    "another that decodes 0": another(0),
    "another that decodes 1": another(1),
    "another that decodes 32": another(32),
    "3 parks": times(3, nothing),
    "10 parks": times(10, another(0)),
}


# -- models ---------------------------------------------------------------------------------------------------------


def llama(path: Path) -> Model:
    return make_model(open_model(path), CpuOps(threads=1))


@pytest.fixture(scope="module", params=["toy", "llama"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[], Drive]]:
    """Makes cold engines of one kind."""
    with ExitStack() as stack:

        def cold() -> Drive:
            path = None if request.param == "toy" else request.getfixturevalue("tiny_model_path")
            drive = Drive(ToyModel() if path is None else llama(path))
            stack.callback(drive.engine.close)
            return drive

        yield cold


@pytest.fixture(scope="module")
def undisturbed(make: Callable[[], Drive]) -> Run:
    """The first request of a cold engine."""
    return Run(make())


@pytest.fixture(scope="module")
def warm(make: Callable[[], Drive]) -> Drive:
    """An engine that has served others, whose pages and workspaces are full of what they left."""
    drive = make()
    for _ in range(3):
        another(32)(drive)
    return drive


def same(run: Run, undisturbed: Run) -> None:
    assert run.tokens == undisturbed.tokens
    assert run.prints == undisturbed.prints


# -- the tests ------------------------------------------------------------------------------------------------------


def test_a_warm_engine_gives_what_a_cold_one_gives(warm: Drive, undisturbed: Run):
    same(Run(warm), undisturbed)


@pytest.mark.parametrize("disturb", DISTURBANCES.values(), ids=DISTURBANCES)
def test_a_park_after_any_slice_or_step_changes_no_bit(warm: Drive, undisturbed: Run, disturb: Disturb):
    """B54: sampled tokens too."""
    for place in range(1, len(undisturbed.prints) + 1):
        same(Run(warm, {place: disturb}), undisturbed)


@pytest.mark.parametrize("parks", [3, 10])
def test_parks_after_slices_that_follow_each_other_change_no_bit(warm: Drive, undisturbed: Run, parks: int):
    for first in range(1, len(undisturbed.prints) - parks + 2):
        same(Run(warm, dict.fromkeys(range(first, first + parks), another(1))), undisturbed)


def test_a_park_after_every_slice_and_step_changes_no_bit(warm: Drive, undisturbed: Run):
    same(Run(warm, dict.fromkeys(range(1, len(undisturbed.prints) + 1), another(1))), undisturbed)


def test_decoding_beside_others_changes_no_bit(warm: Drive, undisturbed: Run):
    """B54: the same seed gives the same tokens, batched or not, and so do they that join it."""
    others = {Seq(next(numbers)): attrs.evolve(OTHERS, seed=seed, max_tokens=20) for seed in range(3)}
    alone = {}
    for seq, sampling in others.items():
        warm.facts.clear()
        warm.open(seq, prompt(seq, 20), sampling)
        warm.step(read=seq)
        warm.run()
        alone[seq] = warm.tokens(seq)
    warm.facts.clear()
    for seq, sampling in others.items():
        warm.open(seq, prompt(seq, 20), sampling)
        warm.step(*others, read=seq)
        warm.until_written(seq, 1)
    victim = Seq(next(numbers))
    warm.open(victim, PROMPT, SAMPLING)
    warm.step(*others, read=victim)
    prints: Fingerprints = [warm.engine.fingerprint(victim)]
    while warm.advance() and not warm.ended(victim):
        now = warm.engine.fingerprint(victim)
        if now != prints[-1]:
            prints.append(now)
    warm.run()
    assert prints[1:] == undisturbed.prints
    assert warm.tokens(victim) == undisturbed.tokens
    assert {seq: warm.tokens(seq) for seq in others} == alone


def test_the_size_of_pages_changes_no_token(make: Callable[[], Drive], undisturbed: Run):
    drive = make()
    small = Drive(drive.model, page=1, pages=400)
    assert Run(small).tokens == undisturbed.tokens


def test_smollm2_is_parked_without_a_trace(default_model_path: Path):
    """A sample of slices and steps of a real model."""
    drive = Drive(llama(default_model_path), pages=40)
    try:
        undisturbed = Run(drive)
        places = [1, 31, 64, 89, 91, 94]
        same(Run(drive, dict(zip(places, [*DISTURBANCES.values()], strict=True))), undisturbed)
    finally:
        drive.engine.close()
