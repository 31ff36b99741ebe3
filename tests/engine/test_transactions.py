"""What a slice or a step does is whole or not at all, wherever the model breaks off; and nothing of it is kept."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from drive import CHUNK, GREEDY, PAGE, Drive, prompt
from toy_model import GIVES_NAN, LAYERS, ToyModel

from strata.cpu.ops import CpuOps
from strata.engine.holdings import Usage
from strata.engine.sequence import HalfChunk, Sequence
from strata.messages import Decoded, Grant, Row, Sampling, Seq, SeqFailed
from strata.models import open_model
from strata.models.architecture import Model
from strata.models.make import make_model

OTHERS = (Seq(2), Seq(3))
VICTIM = Seq(1)
EMPTY = Usage(sequences=0, pages=0, half_chunks=0, workspaces_free=2)


class Breaks(ToyModel):
    """Raises when it comes to this layer of this position of the victim's."""

    def __init__(self, layer: int, position: int) -> None:
        super().__init__()
        self.place = (VICTIM, layer, position)

    def _write(self, handle: Any, layer: int, position: int, below: int) -> int:
        if (handle.seq, layer, position) == self.place:
            raise ArithmeticError("broken off")
        return super()._write(handle, layer, position, below)


def beside(model: Model | None, order: tuple[Seq, ...], sampling: Sampling = GREEDY) -> Drive:
    """Two that decode, and the victim that reads two chunks beside them and joins them, in this order of rows."""
    drive = Drive(model)
    for seq in OTHERS:
        drive.open(seq, prompt(seq, 10), attrs.evolve(GREEDY, max_tokens=40))
        drive.step(*order, read=seq)
        drive.until_written(seq, 1)
    drive.open(VICTIM, prompt(VICTIM, CHUNK + 10), sampling)
    drive.step(*order, read=VICTIM)
    drive.run()
    return drive


def rows_of_others(drive: Drive) -> list[tuple[Row, ...]]:
    """What each step said of them."""
    steps = [fact.rows for fact in drive.facts if isinstance(fact, Decoded)]
    return [others for rows in steps if (others := tuple(row for row in rows if row.seq != VICTIM))]


ORDERS = [(VICTIM, *OTHERS), (OTHERS[0], VICTIM, OTHERS[1]), (*OTHERS, VICTIM)]


@pytest.mark.parametrize("order", ORDERS, ids=["first", "between", "last"])
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("position", [0, CHUNK - 1, CHUNK + 3, CHUNK + 9, CHUNK + 10, CHUNK + 14])
def test_a_model_that_breaks_off_for_one_sequence_fails_that_one_only(
    order: tuple[Seq, ...], layer: int, position: int
):
    """B33: in its first chunk or its last, or as a row of a step; each step of the others stands as it was."""
    drive = beside(Breaks(layer, position), order)
    calm = beside(None, order)
    assert [fact.seq for fact in drive.facts if isinstance(fact, SeqFailed)] == [VICTIM]
    assert "broken off" in (drive.error(VICTIM) or "")
    written = max(0, position - (CHUNK + 10) + 1)
    assert drive.tokens(VICTIM) == calm.tokens(VICTIM)[:written], "what was said before stays said"
    assert rows_of_others(drive) == rows_of_others(calm)
    assert drive.engine.usage() == EMPTY
    assert drive.model.open_reads == 0


@pytest.mark.parametrize("order", ORDERS, ids=["first", "between", "last"])
def test_a_row_that_can_not_be_sampled_fails_alone(order: tuple[Seq, ...]):
    """B33"""
    drive = beside(None, order, attrs.evolve(GREEDY, logit_bias=((GIVES_NAN, 10_000.0),)))
    assert "not finite" in (drive.error(VICTIM) or "")
    assert len(drive.tokens(VICTIM)) == 1
    assert rows_of_others(drive) == rows_of_others(beside(None, order))
    assert drive.engine.usage() == EMPTY


def test_what_can_not_even_be_checked_fails_its_sequence():
    """B33: a number that is too large for arithmetic."""
    drive = Drive()
    drive.open(VICTIM, prompt(1, 10), attrs.evolve(GREEDY, temperature=10**400))
    assert "OverflowError" in (drive.error(VICTIM) or "")
    assert drive.engine.usage() == EMPTY


@pytest.mark.parametrize("out", [1, 3, 4])
def test_one_that_fails_with_pages_in_the_arena_leaves_none_there(out: int):
    drive = Drive()
    drive.open(VICTIM, prompt(VICTIM, 2 * CHUNK), hold=CHUNK)
    drive.step(read=VICTIM)
    drive.advance()
    drive.swap_out(VICTIM, drive.held[VICTIM][:out])
    drive.run_moves()
    drive.swap_in(VICTIM, drive.away[VICTIM][:1])
    drive.tell(Grant(VICTIM, (-1,)))
    assert "page -1" in (drive.error(VICTIM) or "")
    assert drive.engine.usage() == EMPTY
    assert drive.model.open_reads == 0


# -- a real model, broken off at any of its operations ----------------------------------------------------------------


class BreakingOps:
    """A device whose operation number `at` raises, once; the others are the real ones."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._count = count()
        self.at = -1

    def arm(self, at: int) -> None:
        self._count, self.at = count(), at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name in ("tiles", "rows"):
            part = BreakingOps(found)
            part._count_one = self._count_one
            return part
        return self._counted(found) if callable(found) else found

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self._count_one()
            return operation(*arguments, **named)

        return counted

    def _count_one(self) -> None:
        if next(self._count) == self.at:
            raise ArithmeticError("broken off")


@pytest.fixture
def breaking(tiny_model_path: Path) -> Iterator[tuple[BreakingOps, Drive]]:
    ops = BreakingOps(CpuOps(1))
    drive = Drive(make_model(open_model(tiny_model_path), ops))
    yield ops, drive
    drive.engine.close()


def three_that_decode(drive: Drive) -> list[Seq]:
    seqs = [Seq(next(numbers)) for _ in range(3)]
    drive.facts.clear()
    for place, seq in enumerate(seqs):
        drive.open(seq, prompt(place, 20), attrs.evolve(GREEDY, max_tokens=4))
        drive.step(read=seq, until=20)
        drive.until_written(seq, 1)
        drive.step()
    drive.step(*seqs)
    return seqs


numbers = count(10)


def test_a_step_that_breaks_off_and_then_does_not_is_whole(breaking: tuple[BreakingOps, Drive]):
    """At any operation of it: what was half done is done again, row by row, and has the same bits."""
    ops, drive = breaking
    calm = three_that_decode(drive)
    drive.advance()
    expected = [(drive.engine.fingerprint(seq), drive.tokens(seq)) for seq in calm]
    drive.step(*calm)
    drive.run()
    for at in count():
        seqs = three_that_decode(drive)
        ops.arm(at)
        drive.advance()
        broke = next(ops._count) <= at
        ops.arm(-1)
        assert [(drive.engine.fingerprint(seq), drive.tokens(seq)) for seq in seqs] == expected
        drive.run()
        if broke:
            break
    assert at > 10


def test_a_read_that_breaks_off_fails_alone_and_leaves_nothing(breaking: tuple[BreakingOps, Drive]):
    """At any operation of its slices; one whose turn was before is where it was, and goes on."""
    ops, drive = breaking
    drive.open(Seq(1), prompt(1, CHUNK + 20))
    drive.step(read=Seq(1))
    drive.advance()
    before = drive.engine.fingerprint(Seq(1))
    for at in count():
        seq = Seq(next(numbers))
        drive.open(seq, prompt(2, 30), attrs.evolve(GREEDY, max_tokens=1))
        drive.step(read=seq)
        ops.arm(at)
        drive.run()
        ops.arm(-1)
        if drive.ended(seq):
            break
        assert "broken off" in (drive.error(seq) or "")
        usage = drive.engine.usage()
        assert (usage.sequences, usage.half_chunks, usage.workspaces_free) == (1, 1, 1)
        assert drive.engine.fingerprint(Seq(1)) == before
    assert at > 10
    drive.step(read=Seq(1))
    drive.run()
    assert drive.ended(Seq(1)) == "length"
    assert drive.engine.usage() == EMPTY


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_nothing_is_kept_of_finished_steps_and_sequences():
    """Whatever was said and heard, the engine has the step in force and no more."""
    drive = Drive()
    kept = []
    for first in (100, 200):
        for seq in map(Seq, range(first, first + 30)):
            drive.open(seq, prompt(seq, CHUNK + PAGE))
            drive.step(read=seq)
            drive.advance()
            drive.move(seq)
            drive.run()
            drive.facts.clear()
        gc.collect()
        kept.append(Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KEPT)))
    assert kept[0] == kept[1]


KEPT = (Decoded, Row, Sequence, HalfChunk)


def test_a_read_to_the_last_position_of_the_context_works(tiny_model_path: Path):
    """B18: where the context ends inside a tile, a chunk and a page; and one token more is refused."""
    model = make_model(open_model(tiny_model_path), CpuOps(1))
    drive = Drive(model, context=150, pages=30)
    try:
        drive.open(Seq(1), prompt(1, 149), hold=150)
        drive.step(read=Seq(1))
        drive.run()
        assert [row.ended for row in drive.rows(Seq(1))] == ["length"]
        drive.open(Seq(2), prompt(1, 150), hold=150)
        assert "leave no room in a context of 150" in (drive.error(Seq(2)) or "")
        assert drive.engine.usage() == EMPTY
    finally:
        drive.engine.close()
