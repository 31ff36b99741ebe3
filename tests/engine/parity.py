"""What parity tests share: a request that is watched slice by slice, and what may come between two slices.

Knows no page and no bit: the tests say what must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import attrs
from drive import CHUNK, Drive, prompt

from strata.cpu.ops import CpuOps
from strata.messages import Sampling, Seq
from strata.models import open_model
from strata.models.architecture import Model
from strata.models.make import make_model

PROMPT = prompt(1, 2 * CHUNK + 20)
SAMPLING = Sampling(temperature=0.8, top_p=0.95, seed=11, repetition_penalty=1.1, ignore_eos=True, max_tokens=7)
OTHERS = attrs.evolve(SAMPLING, seed=5, max_tokens=33)

Fingerprints = list[Mapping[str, str]]
Disturb = Callable[[Drive, Seq], None]
"""What comes between two slices or steps of this sequence, which is resumed afterwards."""

numbers = count(100)


class Run:
    """What a request went through: its fingerprint after each slice and step, and its tokens."""

    def __init__(
        self, drive: Drive, disturb: Mapping[int, Disturb] | None = None, *, cached: tuple[int, ...] = ()
    ) -> None:
        """`disturb`: what comes after so many slices or steps; `cached`: pages that hold its beginning."""
        self.drive = drive
        self.prints: Fingerprints = []
        seq = Seq(next(numbers))
        drive.facts.clear()
        drive.open(seq, PROMPT, SAMPLING, cached=cached)
        drive.step(read=seq)
        while drive.advance() and not drive.ended(seq):
            self.prints.append(drive.engine.fingerprint(seq))
            between = (disturb or {}).get(len(self.prints))
            if between:
                between(drive, seq)
                drive.step(read=seq)
        self.tokens = drive.tokens(seq)
        assert len(self.tokens) == SAMPLING.max_tokens


def nothing(drive: Drive, _: Seq) -> None:
    """Parked, and nobody else runs."""
    drive.step()
    assert not drive.advance()


def another(decodes: int) -> Disturb:
    """Another request comes, decodes so many tokens, and leaves; with 0 it is parked in its prompt."""

    def disturb(drive: Drive, _: Seq) -> None:
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

    def disturbed(drive: Drive, victim: Seq) -> None:
        for _ in range(repeat):
            disturb(drive, victim)
            drive.step(read=victim)

    return disturbed


DISTURBANCES: dict[str, Disturb] = {
    "nothing": nothing,
    "another that decodes 0": another(0),
    "another that decodes 1": another(1),
    "another that decodes 32": another(32),
    "3 parks": times(3, nothing),
    "10 parks": times(10, another(0)),
}


def llama(path: Path) -> Model:
    return make_model(open_model(path), CpuOps(threads=1))


def same(run: Run, undisturbed: Run) -> None:
    assert run.tokens == undisturbed.tokens
    assert run.prints == undisturbed.prints
