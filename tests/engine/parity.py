"""What parity tests share: a request that is watched slice by slice, and what may come between two slices.

Knows no page and no bit: the tests say what must be equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import attrs
from attrs import frozen
from drive import CHUNK, PAGE, Drive, prompt

from strata.cpu.device import open_cpu
from strata.messages import ChunkRead, Sampling, Seq
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
        self,
        drive: Drive,
        disturb: Mapping[int, Disturb] | None = None,
        *,
        cached: tuple[int, ...] = (),
        written: Sequence[int] = (),
    ) -> None:
        """`disturb`: what comes after so many slices or steps; `cached`: pages that hold its beginning; `written`: the
        first tokens of its answer, from an engine before this one."""
        self.drive = drive
        self.prints: Fingerprints = []
        seq = Seq(next(numbers))
        drive.facts.clear()
        drive.open(seq, PROMPT, SAMPLING, cached=cached, written=written)
        drive.step(read=seq)
        while drive.advance() and not drive.ended(seq):
            self.prints.append(drive.engine.fingerprint(seq))
            between = (disturb or {}).get(len(self.prints))
            if between:
                between(drive, seq)
                drive.step(read=seq)
        self.tokens = drive.tokens(seq)
        assert len(self.tokens) + len(written) == SAMPLING.max_tokens


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
    return make_model(open_model(path), open_cpu(threads=1))


def same(run: Run, undisturbed: Run) -> None:
    assert run.tokens == undisturbed.tokens
    assert run.prints == undisturbed.prints


# -- a known beginning ----------------------------------------------------------------------------------------------


def reads(drive: Drive, tokens: tuple[int, ...] = PROMPT) -> Seq:
    """A sequence that has read this prompt, whose page after it is not granted."""
    seq = Seq(next(numbers))
    drive.open(seq, tokens, hold=len(tokens))
    drive.step(read=seq)
    drive.until_written(seq, 1)
    drive.step()
    drive.run()
    return seq


def cached(drive: Drive, known: int, tokens: tuple[int, ...] = PROMPT) -> tuple[int, ...]:
    """Pages that hold the first `known` of these tokens and that nobody holds."""
    seq = reads(drive, tokens)
    pages = tuple(drive.held[seq][: known // drive.page])
    drive.kept.update(pages)
    drive.close(seq)
    return pages


def same_from_first_chunk_on(hit: Run, undisturbed: Run) -> None:
    """The hit's first chunk begins elsewhere; from its end on nothing may differ."""
    assert hit.tokens == undisturbed.tokens
    skipped = next(at for at, state in enumerate(hit.prints) if state in undisturbed.prints)
    assert hit.prints[skipped:] == undisturbed.prints[-len(hit.prints) + skipped :]
    assert skipped < chunk_slices(hit.drive)


def chunk_slices(drive: Drive) -> int:
    return int(drive.model.slices(CHUNK, 0))


def shares_and_leaves(drive: Drive, victim: Seq) -> None:
    """Another comes with the victim's own first pages, writes behind them, and leaves."""
    position = max((f.position for f in drive.facts if isinstance(f, ChunkRead) and f.seq == victim), default=PAGE)
    seq = Seq(next(numbers))
    drive.open(seq, (*PROMPT[:position], 5, 6, 7), cached=tuple(drive.held[victim][: position // PAGE]))
    drive.step(read=seq)
    drive.until_written(seq, 3)
    drive.close(seq)


@frozen
class Held:
    """A sequence as a model sees it."""

    pages: Sequence[int]


def decoding_differs_from_reading(drive: Drive) -> None:
    """The bits of four tokens, written as an answer and read as a part of a prompt; those before are the same."""
    one, two = Seq(next(numbers)), Seq(next(numbers))
    drive.facts.clear()
    drive.open(one, PROMPT[:20], SAMPLING)
    drive.step(read=one)
    drive.until_written(one, 5)
    drive.step()
    drive.run()
    drive.open(two, (*PROMPT[:20], *drive.tokens(one)[:4]), SAMPLING)
    drive.step(read=two)
    drive.until_written(two, 1)
    for length, equal in ((20, True), (21, False)):
        written, read = (
            [bytes(piece) for piece in drive.model.state_parts(Held(drive.held[seq]), length)["kv"]]
            for seq in (one, two)
        )
        assert (written == read) == equal
    drive.close(one)
    drive.close(two)


# -- moves -----------------------------------------------------------------------------------------------------------


def there_and_back(drive: Drive, victim: Seq) -> None:
    """Out, and into other pages."""
    before = drive.engine.fingerprint(victim)
    drive.step()
    drive.swap_out(victim)
    drive.run_moves()
    assert drive.engine.fingerprint(victim) == before, "in the arena too"
    drive.swap_in(victim)
    drive.run_moves()


def its_pages_are_used_meanwhile(drive: Drive, victim: Seq) -> None:
    drive.step()
    drive.swap_out(victim)
    drive.run_moves()
    another(32)(drive, victim)
    drive.swap_in(victim)
    drive.run_moves()


def some_of_them_and_one_by_one(drive: Drive, victim: Seq) -> None:
    drive.step()
    for page in drive.held[victim][1::2]:
        drive.swap_out(victim, [page])
    drive.advance()
    another(1)(drive, victim)
    for slot in reversed(drive.away[victim]):
        drive.swap_in(victim, [slot])
        drive.run_moves()


def without_a_step_between(drive: Drive, victim: Seq) -> None:
    """Still in the step, and not run until it is back."""
    drive.swap_out(victim)
    drive.run()
    drive.swap_in(victim)
    drive.run_moves()


MOVES: dict[str, Disturb] = {
    move.__name__: move
    for move in (there_and_back, its_pages_are_used_meanwhile, some_of_them_and_one_by_one, without_a_step_between)
}
