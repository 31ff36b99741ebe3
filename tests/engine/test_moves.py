"""Pages go to the arena and come back, one at a time, and whoever is in the midst of it can leave or fail."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from drive import CHUNK, GREEDY, PAGE, PAGES, SLOTS, Drive, prompt
from parity import MOVES, Disturb, Run, same
from toy_model import ToyModel

from strata.engine.holdings import Usage
from strata.errors import DeviceFault
from strata.messages import (
    ChunkRead,
    Close,
    Closed,
    Grant,
    Open,
    Progress,
    Seq,
    SeqFailed,
    Stop,
    Stopped,
    SwapIn,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Took,
)

ONE, TWO, THREE = Seq(1), Seq(2), Seq(3)
LONG = 3 * CHUNK - 10
EMPTY = Usage(sequences=0, pages=0, half_chunks=0, workspaces_free=2)


def parked(drive: Drive, seq: Seq, *, slices: int = 2) -> None:
    """Stands in the midst of its first chunk, with four pages for it."""
    drive.open(seq, prompt(seq, LONG), hold=CHUNK)
    drive.step(read=seq)
    for _ in range(slices):
        drive.advance()
    drive.step()
    drive.run()
    drive.facts.clear()


# -- the same bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_move_after_any_slice_or_step_changes_no_bit(warm: Drive, undisturbed: Run, move: Disturb):
    for place in range(1, len(undisturbed.prints) + 1):
        same(Run(warm, {place: move}), undisturbed)


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_moves_after_every_slice_and_step_change_no_bit(warm: Drive, undisturbed: Run, move: Disturb):
    same(Run(warm, dict.fromkeys(range(1, len(undisturbed.prints) + 1), move)), undisturbed)


# -- one page at a time ---------------------------------------------------------------------------------------------


def test_a_move_copies_one_page_at_each_boundary_and_then_says_so():
    drive = Drive(ToyModel())
    parked(drive, ONE)
    pages = tuple(drive.held[ONE])
    drive.swap_out(ONE)
    for _ in pages[1:]:
        drive.advance()
        assert drive.facts == []
    drive.advance()
    assert drive.facts == [SwappedOut(ONE, pages, (0, 1, 2, 3), pytest.approx(4 * drive.model.page_s))]
    drive.facts.clear()
    drive.swap_in(ONE, [2, 0])
    drive.run()
    assert drive.facts == [SwappedIn(ONE, (2, 0), (PAGES - 1, PAGES - 2), pytest.approx(2 * drive.model.page_s))]


def test_a_newer_step_comes_between_two_pages_and_its_work_after_the_last():
    drive = Drive()
    parked(drive, ONE)
    drive.open(TWO, prompt(2, 10))
    drive.swap_out(ONE)
    drive.advance()
    n = drive.step(read=TWO)
    drive.advance()
    assert drive.facts == [Took(n)]
    drive.run()
    assert isinstance(drive.facts[1], SwappedOut)
    assert drive.ended(TWO) == "length"


def test_until_its_last_page_is_copied_a_sequence_holds_both_places():
    """So nobody can be given either, whatever becomes of the move."""
    drive = Drive()
    parked(drive, ONE)
    drive.swap_out(ONE)
    drive.advance()
    assert attrs.evolve(drive.engine.usage(), half_chunks=0, workspaces_free=2) == Usage(1, 4, 0, 2, slots=4, moves=1)
    drive.run()
    assert attrs.evolve(drive.engine.usage(), half_chunks=0, workspaces_free=2) == Usage(1, 0, 0, 2, slots=4, moves=0)
    drive.swap_in(ONE)
    drive.advance()
    assert attrs.evolve(drive.engine.usage(), half_chunks=0, workspaces_free=2) == Usage(1, 4, 0, 2, slots=4, moves=1)
    drive.run()
    assert attrs.evolve(drive.engine.usage(), half_chunks=0, workspaces_free=2) == Usage(1, 4, 0, 2, slots=0, moves=0)


def test_no_pages_are_moved_at_once():
    drive = Drive()
    parked(drive, ONE)
    drive.swap_out(ONE, ())
    drive.advance()
    assert drive.facts == [SwappedOut(ONE, (), (), 0.0)]


# -- whose pages are away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how_many", [1, 4])
def test_a_sequence_with_a_page_away_does_not_run_and_does_not_ask_for_one(how_many: int):
    drive = Drive()
    parked(drive, ONE)
    drive.swap_out(ONE, drive.held[ONE][:how_many])
    drive.run()
    drive.facts.clear()
    n = drive.step(ONE, read=ONE)
    drive.run()
    assert drive.facts == [Took(n)]
    drive.swap_in(ONE)
    drive.run(lambda: "1 chunk" in drive.kinds())


def test_a_sequence_whose_page_is_about_to_move_does_not_run():
    drive = Drive()
    parked(drive, ONE)
    drive.step(read=ONE)
    drive.swap_out(ONE)
    drive.advance()
    assert not any(isinstance(fact, Progress | ChunkRead) for fact in drive.facts)


def test_a_page_can_be_granted_to_one_whose_others_are_away():
    drive = Drive()
    parked(drive, ONE)
    drive.swap_out(ONE)
    drive.run()
    drive.grant(ONE, LONG - CHUNK + GREEDY.max_tokens)
    drive.swap_in(ONE)
    drive.step(read=ONE)
    drive.run()
    alone = Drive()
    alone.open(ONE, prompt(ONE, LONG))
    alone.step(read=ONE)
    alone.run()
    assert drive.tokens(ONE) == alone.tokens(ONE)


def test_the_chunk_that_is_finished_for_its_workspace_is_one_whose_pages_are_here():
    drive = Drive()
    parked(drive, ONE)
    parked(drive, TWO)
    drive.open(THREE, prompt(3, LONG))
    drive.step(read=THREE)
    drive.swap_out(TWO)
    drive.run(lambda: "3 slice" in drive.kinds())
    assert drive.kinds()[:2] == ["1 chunk", "3 slice"]


def test_a_step_whose_reader_finds_no_workspace_is_taken_when_all_half_read_are_away():
    """Those that decode go on; the reader begins when one of them is back, is finished or has left."""
    drive = Drive(workspaces=1)
    parked(drive, ONE)
    drive.swap_out(ONE)
    drive.run()
    drive.open(TWO, prompt(2, 10))
    drive.open(THREE, prompt(3, LONG))
    n = drive.step(TWO, read=THREE)
    assert not drive.advance()
    assert drive.facts[-1] == Took(n)
    drive.swap_in(ONE)
    drive.run(lambda: "3 slice" in drive.kinds())
    assert drive.kinds()[:2] == ["1 chunk", "3 slice"]


# -- leaving and failing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", range(6))
@pytest.mark.parametrize("back", [False, True])
def test_a_close_in_the_midst_of_a_move_leaves_nothing(copied: int, back: bool):
    drive = Drive()
    parked(drive, ONE)
    parked(drive, TWO)
    drive.swap_out(ONE)
    if back:
        drive.run()
        drive.swap_in(ONE)
    drive.swap_out(TWO)
    for _ in range(copied):
        drive.advance()
    drive.facts.clear()
    drive.close(ONE)
    assert drive.facts == [Closed(ONE)]
    drive.run()
    assert [type(fact) for fact in drive.facts] == [Closed, *([SwappedOut] if copied < 8 else [])]
    assert attrs.evolve(drive.engine.usage(), workspaces_free=2) == Usage(1, 0, 1, 2, slots=4, moves=0)
    drive.close(TWO)
    assert drive.engine.usage() == EMPTY


def test_a_stop_in_the_midst_of_a_move_is_the_last_word():
    drive = Drive()
    parked(drive, ONE)
    drive.swap_out(ONE)
    drive.advance()
    drive.tell(Stop())
    assert drive.facts[-1] == Stopped()
    assert drive.engine.usage() == EMPTY


def test_moves_of_one_that_is_gone_or_never_was_do_nothing():
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    drive.step(read=ONE)
    drive.run()
    drive.facts.clear()
    for seq in (ONE, Seq(99)):
        drive.tell(SwapOut(seq, (0,), (0,)), SwapIn(seq, (0,), (0,)))
    assert not drive.advance()
    assert drive.facts == []


FOUR = (95, 94, 93, 92)
WRONG: dict[str, Callable[[Drive], object]] = {
    "not its page": lambda drive: drive.tell(SwapOut(ONE, (0,), (0,))),
    "another's page": lambda drive: drive.tell(SwapOut(ONE, (91,), (0,))),
    "a page that there is not": lambda drive: drive.tell(SwapOut(ONE, (PAGES,), (0,))),
    "a page twice": lambda drive: drive.tell(SwapOut(ONE, (95, 95), (0, 1))),
    "a page that is being moved": lambda drive: drive.tell(SwapOut(ONE, (95,), (0,)), SwapOut(ONE, (95,), (1,))),
    "fewer slots than pages": lambda drive: drive.tell(SwapOut(ONE, FOUR, (0,))),
    "fewer pages than slots": lambda drive: drive.tell(SwapOut(ONE, FOUR[:1], (0, 1))),
    "a slot twice": lambda drive: drive.tell(SwapOut(ONE, FOUR[:2], (0, 0))),
    "a slot that there is not": lambda drive: drive.tell(SwapOut(ONE, FOUR[:1], (SLOTS,))),
    "a negative slot": lambda drive: drive.tell(SwapOut(ONE, FOUR[:1], (-1,))),
    "a slot in use": lambda drive: (drive.swap_out(TWO), drive.tell(SwapOut(ONE, FOUR[:1], (0,)))),
    "not its slot": lambda drive: (drive.swap_out(TWO), drive.run(), drive.tell(SwapIn(ONE, (0,), (5,)))),
    "a slot that nobody has": lambda drive: drive.tell(SwapIn(ONE, (7,), (5,))),
    "a page for a slot": lambda drive: drive.tell(SwapIn(ONE, (-1,), (5,))),
    "back before it is out": lambda drive: drive.tell(SwapOut(ONE, (95,), (0,)), SwapIn(ONE, (0,), (5,))),
    "back to a page in use": lambda drive: (drive.swap_out(ONE), drive.run(), drive.tell(SwapIn(ONE, (0,), (91,)))),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_move_that_can_not_be_fails_its_sequence_alone(wrong: Callable[[Drive], object]):
    drive = Drive()
    parked(drive, ONE)
    parked(drive, TWO)
    assert tuple(drive.held[ONE]) == FOUR
    wrong(drive)
    drive.run()
    assert [fact.seq for fact in drive.facts if isinstance(fact, SeqFailed)] == [ONE]
    usage = drive.engine.usage()
    assert (usage.sequences, usage.pages + usage.slots, usage.moves) == (1, 4, 0)
    drive.swap_in(TWO)
    drive.grant(TWO, LONG)
    drive.step(read=TWO)
    drive.run()
    assert drive.ended(TWO) == "length"
    assert drive.engine.usage() == EMPTY


def test_a_page_that_another_reads_is_not_moved():
    drive = Drive()
    parked(drive, TWO, slices=3)
    drive.open(ONE, prompt(TWO, LONG), cached=tuple(drive.held[TWO][:2]), hold=PAGE)
    drive.tell(SwapOut(TWO, tuple(drive.held[TWO][1:2]), (0,)))
    assert "held by others too" in (drive.error(TWO) or "")
    drive.swap_out(ONE)
    drive.run()
    assert drive.error(ONE) is None, "it is the last holder now"


def test_a_page_that_is_being_copied_in_is_not_shared_yet():
    drive = Drive()
    parked(drive, TWO, slices=3)
    drive.swap_out(TWO)
    drive.run()
    drive.swap_in(TWO)
    coming = tuple(sorted(drive.pages, reverse=True)[:2])
    drive.tell(Open(ONE, prompt(TWO, LONG), GREEDY, coming, 2 * PAGE))
    assert "lies elsewhere" in (drive.error(ONE) or "")
    drive.run()
    drive.tell(Open(THREE, prompt(TWO, LONG), GREEDY, coming, 2 * PAGE))
    assert drive.error(THREE) is None


class Breaks(ToyModel):
    """Its second copy fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.copies = 0

    def copy_out(self, page: int, slot: int) -> None:
        self.copies += 1
        if self.copies == 2:
            raise self.error
        super().copy_out(page, slot)


def test_a_copy_that_fails_fails_its_sequence_alone_and_leaves_nothing():
    drive = Drive(Breaks(ValueError("no such luck")))
    parked(drive, ONE)
    parked(drive, TWO)
    drive.swap_out(ONE)
    drive.swap_out(TWO)
    drive.run()
    assert "no such luck" in (drive.error(ONE) or "")
    assert [fact.seq for fact in drive.facts if isinstance(fact, SwappedOut)] == [TWO]
    drive.close(TWO)
    assert drive.engine.usage() == EMPTY


@pytest.mark.parametrize("error", [DeviceFault("gone"), MemoryError("none")])
def test_a_copy_that_loses_the_device_or_the_memory_is_no_matter_of_one_sequence(error: Exception):
    drive = Drive(Breaks(error))
    parked(drive, ONE)
    drive.swap_out(ONE)
    with pytest.raises(type(error)):
        drive.run()


def test_an_engine_without_an_arena_refuses_to_swap():
    drive = Drive(slots=0)
    assert drive.engine.ready(1).slots == 0
    parked(drive, ONE)
    drive.tell(SwapOut(ONE, tuple(drive.held[ONE]), (0, 1, 2, 3)))
    assert "slot 0 is not one of 0" in (drive.error(ONE) or "")
    assert Drive(slots=5).engine.ready(1).slots == 5


def test_the_same_numbers_can_be_used_again_and_again():
    drive = Drive()
    parked(drive, ONE)
    for _ in range(50):
        drive.move(ONE)
    drive.tell(Close(ONE), Open(TWO, prompt(2, 10), GREEDY), Grant(TWO, tuple(range(PAGES))))
    assert drive.error(TWO) is None
