"""The engine follows the newest step, shares the time by credit, and holds no more than it was given."""

from __future__ import annotations

import attrs
import pytest
from drive import CHUNK, GREEDY, PAGE, PAGES, Drive, always, prompt
from toy_model import END, LAYERS, ToyModel

from strata.engine.holdings import Usage
from strata.messages import (
    ChunkRead,
    Close,
    Closed,
    Decoded,
    Grant,
    Open,
    Progress,
    Sampling,
    Seq,
    Step,
    Stop,
    Stopped,
    Took,
    Wants,
)

ONE, TWO, THREE, FOUR = Seq(1), Seq(2), Seq(3), Seq(4)
LONG = 3 * CHUNK - 10
EMPTY = Usage(sequences=0, pages=0, half_chunks=0, workspaces_free=2)


# -- one request ----------------------------------------------------------------------------------------------------


def test_a_request_that_is_alone_runs_slice_after_slice_and_never_parks():
    """B01: between its slices and steps the engine does nothing else, and says nothing of a park."""
    drive = Drive()
    drive.open(ONE, prompt(1, LONG))
    n = drive.step(read=ONE)
    drive.run()
    assert drive.facts[0] == Took(n)
    chunk = ["1 slice"] * (LAYERS - 1) + ["1 chunk"]
    assert drive.kinds() == chunk * 3 + ["1 decode"] * GREEDY.max_tokens
    assert drive.model.watch.now == pytest.approx(drive.model.slice_s * 3 * LAYERS + drive.model.step_s * 7)
    assert drive.engine.usage() == EMPTY


def test_chunks_lie_on_a_grid_from_position_0():
    drive = Drive()
    drive.open(ONE, prompt(1, LONG))
    drive.step(read=ONE)
    drive.run()
    assert [fact.position for fact in drive.facts if isinstance(fact, ChunkRead)] == [CHUNK, 2 * CHUNK, LONG]
    assert [(fact.chunk, fact.done, fact.total) for fact in drive.facts if isinstance(fact, Progress)] == [
        (chunk, done, LAYERS) for chunk in range(3) for done in range(1, LAYERS)
    ]


def test_a_known_prefix_is_not_read_again_and_does_not_move_the_grid():
    first = Drive()
    first.open(ONE, prompt(1, LONG), hold=0)
    pages = first.grant(ONE, 2 * CHUNK)
    first.step(read=ONE)
    first.run()
    first.tell(Close(ONE))
    first.facts.clear()
    cached = pages[: (CHUNK + PAGE) // PAGE]
    first.kept.update(cached)
    first.open(TWO, prompt(1, LONG), cached=cached)
    first.step(read=TWO)
    first.run()
    assert [fact.position for fact in first.facts if isinstance(fact, ChunkRead)] == [2 * CHUNK, LONG]
    plain = Drive()
    plain.open(TWO, prompt(1, LONG))
    plain.step(read=TWO)
    plain.run()
    assert first.tokens(TWO) == plain.tokens(TWO)


def test_the_times_said_are_those_that_passed():
    drive = Drive(ToyModel(slice_s=0.25, step_s=0.5))
    drive.open(ONE, prompt(1, 10))
    drive.step(read=ONE)
    drive.run()
    assert [fact.seconds for fact in drive.facts if isinstance(fact, Progress | ChunkRead)] == [0.25] * LAYERS
    assert [fact.seconds for fact in drive.facts if isinstance(fact, Decoded)] == [0.0] + [0.5] * 7


# -- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "written", "ended"),
    [
        (always(END, ignore_eos=False), 1, "stop"),
        (always(END, ignore_eos=True), 8, "length"),
        (always(END, ignore_eos=False, max_tokens=1), 1, "stop"),
        (always(5, ignore_eos=False), 8, "length"),
        (always(5, max_tokens=1), 1, "length"),
        (always(END, ignore_eos=False, min_tokens=3), 4, "stop"),
        (always(END, ignore_eos=False, min_tokens=99), 8, "length"),
    ],
)
def test_an_answer_ends_at_an_end_token_or_at_its_length(sampling: Sampling, written: int, ended: str):
    drive = Drive()
    drive.open(ONE, prompt(1, 10), sampling)
    drive.step(read=ONE)
    drive.run()
    assert [row.ended for row in drive.rows(ONE)] == [None] * (written - 1) + [ended]
    assert drive.engine.usage() == EMPTY


def test_an_answer_ends_where_the_context_does():
    drive = Drive(context=20)
    drive.open(ONE, prompt(1, 16), attrs.evolve(GREEDY, max_tokens=99), hold=20)
    drive.step(read=ONE)
    drive.run()
    assert [row.ended for row in drive.rows(ONE)] == [None, None, None, "length"]


# -- steps ----------------------------------------------------------------------------------------------------------


def test_a_step_is_looked_for_after_every_slice():
    drive = Drive()
    drive.open(ONE, prompt(1, LONG))
    drive.open(TWO, prompt(2, 10))
    drive.step(read=ONE)
    drive.advance()
    n = drive.step(read=TWO)
    drive.advance()
    assert drive.facts[-2:] == [Took(n), Progress(TWO, 0, 1, LAYERS, drive.model.slice_s)]


def test_a_late_step_and_one_with_the_same_number_are_ignored():
    """B04: also when they come while a newer one waits to be taken."""
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    drive.tell(Step(4, read=ONE), Step(3), Step(4))
    drive.advance()
    drive.tell(Step(4), Step(1))
    drive.run()
    assert drive.ended(ONE) == "length"
    assert [fact for fact in drive.facts if isinstance(fact, Took)] == [Took(4)]


def test_of_steps_that_come_together_the_newest_alone_is_taken():
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    drive.tell(Step(1), Step(2, read=ONE), Step(3))
    assert not drive.advance()
    assert drive.facts == [Took(3)]


def test_a_step_meant_for_a_read_that_has_just_ended_parks_nobody():
    """B04: the sequence decodes, whether the step still calls it the reader or has it among the decoders."""
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    drive.open(TWO, prompt(2, 10))
    drive.step(read=ONE)
    drive.until_written(ONE, 1)
    drive.step(TWO, read=ONE)
    drive.until_written(ONE, 3)
    drive.step(ONE, read=TWO)
    drive.run()
    assert [drive.ended(ONE), drive.ended(TWO)] == ["length", "length"]


def test_without_a_step_nothing_runs():
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    assert not drive.advance()
    assert drive.facts == []


def test_reading_goes_no_further_than_the_step_says():
    drive = Drive()
    drive.open(ONE, prompt(1, LONG))
    drive.step(read=ONE, until=CHUNK)
    drive.run()
    assert drive.kinds()[-1] == "1 chunk"
    drive.step(read=ONE)
    drive.advance()
    drive.step(read=ONE, until=CHUNK)
    assert not drive.advance(), "what was begun beyond it stands too"


def test_all_that_decode_take_part_in_each_step():
    drive = Drive()
    for seq in (ONE, TWO, THREE):
        drive.open(seq, prompt(seq, 10), attrs.evolve(GREEDY, max_tokens=20))
        drive.step(read=seq)
        drive.until_written(seq, 1)
    drive.step(ONE, TWO, THREE, TWO)
    drive.advance()
    assert drive.kinds()[-1] == "1+2+3 decode"


# -- R4 -------------------------------------------------------------------------------------------------------------


def shared(share: float, gap_s: float, *, slice_s: float, step_s: float) -> Drive:
    """One decodes for ever, another has much to read, and the step names both."""
    drive = Drive(ToyModel(slice_s=slice_s, step_s=step_s))
    drive.open(ONE, prompt(1, 10), attrs.evolve(GREEDY, max_tokens=500))
    drive.open(TWO, prompt(2, 6 * CHUNK))
    drive.step(read=ONE)
    drive.until_written(ONE, 1)
    drive.facts.clear()
    drive.step(ONE, read=TWO, read_share=share, gap_s=gap_s)
    return drive


def letters(drive: Drive, count: int) -> str:
    """The next runs: d for a decode step, s for a slice."""
    start = len(drive.kinds())
    for _ in range(count):
        drive.advance()
    return "".join("d" if "decode" in kind else "s" for kind in drive.kinds()[start:])


@pytest.mark.parametrize(
    ("share", "gap_s", "slice_s", "step_s", "order"),
    [
        (0.5, 0.0, 1.0, 1.0, "dsdsdsdsds"),
        (0.75, 0.0, 1.0, 1.0, "dsssdsssdsss"),
        # A slice of four steps overdraws by three, which three steps pay back.
        (0.5, 0.0, 4.0, 1.0, "dsddddsdddds"),
        # A gap lets a short read run on.
        (0.5, 5.0, 1.0, 1.0, "dsssssdsssss"),
        # Unused credit is not kept: 1.5 earned, one slice of 1 taken, then another overdraws by half.
        (0.6, 0.0, 1.0, 1.0, "dssdsdssds"),
    ],
)
def test_reading_takes_its_share_beside_decoding(share: float, gap_s: float, slice_s: float, step_s: float, order: str):
    assert letters(shared(share, gap_s, slice_s=slice_s, step_s=step_s), len(order)) == order


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("gap_s", [0.0, 0.7])
def test_a_gap_between_tokens_is_bounded(share: float, gap_s: float):
    """At most one step + max(d x s / (1 - s), gap) + one slice."""
    slice_s, step_s = 0.3, 0.4
    drive = shared(share, gap_s, slice_s=slice_s, step_s=step_s)
    last = drive.model.watch.now
    longest = 0.0
    while drive.advance() and not drive.tokens(TWO):
        if isinstance(drive.facts[-1], Decoded):
            longest = max(longest, drive.model.watch.now - last)
            last = drive.model.watch.now
    assert longest <= step_s + max(step_s * share / (1 - share), gap_s) + slice_s + 1e-9


def test_credit_is_forgotten_while_nobody_decodes_or_nobody_reads():
    drive = shared(0.5, 0.0, slice_s=100.0, step_s=1.0)
    assert letters(drive, 2) == "ds"
    drive.step(ONE)
    assert letters(drive, 3) == "ddd"
    drive.step(ONE, read=TWO)
    assert letters(drive, 2) == "sd", "what was overdrawn is forgotten, not paid back"
    drive.step(read=TWO)
    assert letters(drive, 5) == "sssss"


def test_a_reader_without_pages_takes_no_time_from_the_decoders():
    drive = Drive()
    drive.open(ONE, prompt(1, 10), attrs.evolve(GREEDY, max_tokens=20))
    drive.open(TWO, prompt(2, LONG), hold=CHUNK)
    drive.step(read=ONE)
    drive.until_written(ONE, 1)
    drive.step(ONE, read=TWO)
    drive.run()
    assert drive.ended(ONE) == "length"
    assert drive.facts.count(Wants(TWO)) == 1


# -- workspaces -----------------------------------------------------------------------------------------------------


def half_read(drive: Drive, *seqs: Seq) -> None:
    """Each of them stands in the midst of its first chunk."""
    for seq in seqs:
        drive.open(seq, prompt(seq, LONG))
        drive.step(read=seq)
        drive.advance()


def test_without_a_free_workspace_the_last_chunk_is_finished_before_the_step_is_taken():
    drive = Drive()
    half_read(drive, ONE, TWO)
    drive.open(THREE, prompt(3, LONG))
    drive.facts.clear()
    n = drive.step(read=THREE)
    for _ in range(LAYERS):
        drive.advance()
    assert drive.kinds() == ["2 slice"] * (LAYERS - 2) + ["2 chunk"] + ["3 slice"]
    assert drive.facts[-2] == Took(n), "it is in force when the workspace is free, not before"


def test_waiting_for_a_workspace_ends_when_the_step_is_withdrawn():
    drive = Drive()
    half_read(drive, ONE, TWO)
    drive.open(THREE, prompt(3, LONG))
    drive.step(read=THREE)
    drive.advance()
    drive.facts.clear()
    n = drive.step(read=ONE)
    drive.advance()
    assert drive.facts[0] == Took(n)
    assert drive.kinds() == ["1 slice"]


@pytest.mark.parametrize("leaver", [ONE, TWO, THREE])
def test_waiting_for_a_workspace_ends_when_somebody_leaves(leaver: Seq):
    drive = Drive()
    half_read(drive, ONE, TWO)
    drive.open(THREE, prompt(3, LONG))
    n = drive.step(read=THREE)
    drive.close(leaver)
    drive.facts.clear()
    ran = drive.advance()
    assert drive.facts[0] == Took(n)
    assert ran == (leaver != THREE)


def test_decoders_go_on_by_credit_while_a_chunk_is_finished_for_its_workspace():
    drive = Drive(workspaces=1)
    drive.open(ONE, prompt(1, 10), attrs.evolve(GREEDY, max_tokens=50))
    drive.step(read=ONE)
    drive.until_written(ONE, 1)
    drive.open(TWO, prompt(2, LONG))
    drive.open(THREE, prompt(3, LONG))
    drive.step(ONE, read=TWO)
    drive.run(lambda: drive.kinds()[-1] == "2 slice")
    drive.facts.clear()
    drive.step(ONE, read=THREE)
    drive.run(lambda: drive.kinds()[-1:] == ["3 slice"])
    assert drive.kinds() == ["1 decode", "2 slice", "1 decode", "2 chunk", "1 decode", "3 slice"]


def test_one_workspace_is_enough_for_any_order_of_readers():
    alone = {}
    for seq in (ONE, TWO, THREE, FOUR):
        drive = Drive()
        drive.open(seq, prompt(seq, LONG))
        drive.step(read=seq)
        drive.run()
        alone[seq] = drive.tokens(seq)
    drive = Drive(workspaces=1)
    for seq in alone:
        drive.open(seq, prompt(seq, LONG))
    for turn in range(100):
        drive.step(*alone, read=Seq(1 + turn % 4))
        drive.advance()
        assert drive.engine.usage().half_chunks + drive.engine.usage().workspaces_free == 1
    drive.run()
    for seq in alone:
        drive.step(*alone, read=seq)
        drive.run()
    assert {seq: drive.tokens(seq) for seq in alone} == alone


def test_a_workspace_is_lent_to_a_reader_that_is_opened_after_its_step():
    drive = Drive(workspaces=1)
    half_read(drive, ONE)
    drive.step(read=TWO)
    assert not drive.advance()
    drive.open(TWO, prompt(2, 10))
    drive.run()
    assert drive.ended(TWO) == "length"
    assert drive.kinds().count("1 chunk") == 1


# -- pages ----------------------------------------------------------------------------------------------------------


def test_it_says_once_that_it_wants_pages_and_does_not_spin():
    drive = Drive()
    drive.open(ONE, prompt(1, LONG), hold=CHUNK)
    drive.step(read=ONE)
    drive.run()
    assert not drive.advance()
    drive.step(read=ONE)
    assert not drive.advance()
    assert drive.facts.count(Wants(ONE)) == 1


def test_a_grant_that_is_too_small_is_answered_by_another_want():
    drive = Drive()
    drive.open(ONE, prompt(1, LONG), hold=0)
    drive.step(read=ONE)
    drive.run()
    drive.grant(ONE, PAGE)
    drive.run()
    assert drive.kinds() == ["1 wants", "1 wants"]


def test_a_chunk_begins_only_with_all_of_its_pages():
    drive = Drive()
    drive.open(ONE, prompt(1, LONG), hold=CHUNK - PAGE)
    drive.step(read=ONE)
    drive.run()
    assert drive.kinds() == ["1 wants"]
    assert drive.engine.usage().half_chunks == 0


def test_a_decoder_at_the_end_of_its_pages_is_left_out_and_the_others_go_on():
    drive = Drive()
    drive.open(ONE, prompt(1, PAGE), hold=PAGE)
    drive.open(TWO, prompt(2, PAGE))
    for seq in (ONE, TWO):
        drive.step(read=seq)
        drive.until_written(seq, 1)
    drive.step(ONE, TWO)
    drive.run()
    assert drive.ended(TWO) == "length"
    assert len(drive.tokens(ONE)) == 1
    assert drive.facts.count(Wants(ONE)) == 1
    drive.grant(ONE, GREEDY.max_tokens)
    drive.run()
    assert drive.ended(ONE) == "length"


# -- leaving --------------------------------------------------------------------------------------------------------


def test_a_close_in_the_midst_of_a_chunk_frees_workspace_pages_and_generator():
    drive = Drive()
    half_read(drive, ONE, TWO)
    assert drive.model.open_reads == 2
    drive.close(ONE)
    drive.close(TWO)
    assert drive.facts[-2:] == [Closed(ONE), Closed(TWO)]
    assert drive.engine.usage() == EMPTY
    assert drive.model.open_reads == 0
    assert not drive.advance()


def test_messages_to_a_sequence_that_is_gone_do_nothing():
    drive = Drive()
    drive.open(ONE, prompt(1, 10))
    drive.step(read=ONE)
    drive.run()
    said = list(drive.facts)
    drive.tell(Close(ONE), Grant(ONE, (0,)), Grant(ONE, (PAGES + 5,)), Close(Seq(99)))
    assert drive.facts == said
    assert drive.engine.usage() == EMPTY


def test_a_stop_forgets_all_and_is_the_last_word():
    drive = Drive()
    half_read(drive, ONE, TWO)
    drive.tell(Stop(), Close(ONE), Stop(), Open(THREE, prompt(3, 5), GREEDY))
    drive.step(read=TWO)
    assert not drive.advance()
    assert drive.facts[-1] == Stopped()
    assert drive.facts.count(Stopped()) == 1
    assert drive.engine.usage() == EMPTY
    assert drive.model.open_reads == 0


def test_an_engine_shows_itself():
    drive = Drive()
    half_read(drive, ONE)
    assert "1 sequences" in repr(drive.engine)
    assert "Workspaces 1 free of 2" in repr(drive.engine)
