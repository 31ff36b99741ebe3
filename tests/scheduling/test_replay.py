"""Replay (R10): who goes on after an engine's death, who runs alone until it is known to be harmless, and who fails."""

from __future__ import annotations

import pytest
from desk import Desk
from model_engine import Died, Work

from strata.config import SchedulerSettings
from strata.errors import EngineUnavailable, PromptTooLong
from strata.messages import Completed, Decoded, Failed, Seq, Step
from strata.scheduling.lifecycle import State

DIED = EngineUnavailable("the engine died")


def desk(*, pages: int = 1000, workspaces: int = 2, **named: object) -> Desk:
    rules = {"chunk_tokens": 64, "max_running": 4, "on_engine_death": "replay", **named}
    return Desk(SchedulerSettings(**rules), Work(workspaces=workspaces), pages=pages)


def live(house: Desk) -> int:
    """To the end of all, over any number of deaths; how many there were."""
    deaths = 0
    while True:
        try:
            house.run()
        except Died:
            deaths += 1
            house.hear()
            house.die(DIED)
        else:
            return deaths


def one_of_each(house: Desk) -> list[Seq]:
    """With two rows: one decodes, one is parked, one reads, one is queued."""
    decodes = house.submit(30, 200)
    house.run(10)
    parked = house.submit(2000, 5)
    house.run(10)
    reads = house.submit(300, 5)
    house.run(2)
    queued = house.submit(2000, 5)
    seqs = [decodes, parked, reads, queued]
    assert [house.state(seq) for seq in seqs] == ["decoding", "parked (reading)", "reading", "queued"]
    return seqs


def running(house: Desk) -> list[Seq]:
    step = house.steps[-1]
    return sorted({*step.decode, *([] if step.read is None else [step.read])})


def test_cached_tokens_are_those_that_it_first_found_though_another_engine_knew_none():
    """B63: what its client was spared, and not what an engine's death cost."""
    house = desk()
    house.submit(130, 1, like=1, alike=100)
    house.run()
    follow_up = house.submit(130, 20, like=1, alike=100)
    house.run(5)
    house.die(DIED)
    house.run()
    figures = house.ended[follow_up].figures
    assert (figures.cached_tokens, figures.read_tokens) == (96, 130)


def test_after_a_death_all_go_on_and_no_token_is_lost_or_written_twice():
    """B31: the model engine finds fault with any other beginning than what was written."""
    house = desk(max_running=2)
    seqs = one_of_each(house)
    house.die(DIED)
    assert house.ended == {}
    assert live(house) == 0
    for seq in seqs:
        assert house.ended[seq].outcome == Completed("stop")
        assert house.tokens[seq] == list(range(1, house.asked[seq].max_tokens + 1))
        assert house.ended[seq].figures.written_tokens == house.asked[seq].max_tokens
    now = house.scheduler.statistics(house.now)
    assert (now.pages_free, now.pages_reserved) == (house.pages, 0)


def test_without_replay_they_fail_and_with_no_replay_left_too():
    for named in ({"on_engine_death": "fail"}, {"max_replays": 0}):
        house = desk(max_running=2, **named)
        decodes, parked, reads, queued = one_of_each(house)
        house.die(DIED)
        failed = {decodes, reads} | ({parked} if named == {"on_engine_death": "fail"} else set())
        assert set(house.ended) == failed
        assert all(house.ended[seq].outcome == Failed(DIED) for seq in failed)
        live(house)
        assert house.ended[queued].outcome == Completed("stop")


def test_suspects_run_one_at_a_time_in_rank_until_each_has_got_past_the_point():
    """Nobody beside them: neither the one that was parked, nor one that comes with a higher priority."""
    house = desk(max_running=2)
    decodes, parked, reads, queued = one_of_each(house)
    written, position = len(house.tokens[decodes]), house.scheduler.figures(reads, house.now).read_tokens
    house.die(DIED)
    house.submit(10, 5, priority=1)
    while len(house.tokens[decodes]) == written:
        assert running(house) == [decodes]
        house.run(1)
    assert running(house) == [reads]
    assert house.state(decodes) == "parked (decoding)"
    assert house.scheduler.figures(decodes, house.now).parks["suspect"] == 1
    while house.scheduler.figures(reads, house.now).read_tokens <= position:
        assert running(house) == [reads]
        house.run(1)
    assert len(running(house)) == 2
    assert [house.state(seq) for seq in (parked, queued)] == ["queued", "queued"]
    live(house)
    assert len(house.ended) == 5


@pytest.mark.parametrize("workspaces", [1, 2])
def test_a_half_read_prompt_whose_workspace_the_next_reader_needs_is_a_suspect_though_no_step_names_it(
    workspaces: int,
) -> None:
    """The engine reads it to its chunk's end then; where there is room for both it does not."""
    house = desk(max_running=1, workspaces=workspaces, max_replays=0, age_every_s=0.5, quantum_s=0.1)
    above = house.submit(10, 200, priority=1)
    aged = house.submit(300, 5)
    while house.state(aged) != "parked (reading)":
        house.run(1)
    house.run(3)
    assert house.scheduler.statistics(house.now).half_read == 1
    assert running(house) == [above]
    needs_room = house.submit(64, 5, priority=2)
    house.engine.advance()
    house.die(DIED)
    assert needs_room in house.ended
    assert (aged in house.ended) == (workspaces == 1)
    live(house)


@pytest.mark.parametrize("max_replays", [1, 3])
@pytest.mark.parametrize("poison", [(0, 0), (0, 64), (3, 0), (4, 30)])
def test_a_request_that_kills_engines_does_so_once_more_than_it_is_replayed(
    max_replays: int, poison: tuple[int, int]
) -> None:
    """And all others end as if it had not come, also those that ran beside it."""
    house = desk(max_replays=max_replays)
    others = [house.submit(30, 40), house.submit(200, 30)]
    house.run(12)
    bad = house.number()
    house.engine.poison[bad] = poison
    house.submit(150, 20, seq=bad)
    others.append(house.submit(100, 10))
    assert live(house) == max_replays + 1
    assert house.ended[bad].outcome == Failed(DIED)
    assert {house.ended[seq].outcome for seq in others} == {Completed("stop")}
    assert all(len(house.tokens[seq]) == house.asked[seq].max_tokens for seq in others)


def test_one_that_was_just_opened_is_suspected_though_no_step_has_run_it():
    """It may have died of the opening."""
    house = desk()
    old = house.submit(30, 40)
    house.run(5)
    house.engine.deaf = 5
    new = house.submit(100, 5)
    house.die(DIED)
    assert running(house) == [old]
    house.run(until=new)
    parks = house.scheduler.figures(old, house.now).parks
    assert parks["suspect"] == 1


def test_a_chunk_that_has_to_be_finished_for_its_workspace_is_suspected():
    """With one workspace a newcomer's step waits for the chunk of one that is parked already."""
    house = desk(workspaces=1)
    long = house.submit(2000, 5)
    house.run(2)
    house.submit(30, 5)
    assert house.state(long) == "parked (reading)"
    house.die(DIED)
    assert running(house) == [long]
    assert live(house) == 0


def test_a_death_that_an_operator_asked_for_suspects_nobody_and_counts_for_nobody():
    house = desk(max_running=2, max_replays=1)
    seqs = one_of_each(house)
    for _ in range(3):
        house.die(DIED, blamed=False)
        assert len(running(house)) > 0
        house.run(6)
    assert live(house) == 0
    assert all(house.ended[seq].outcome == Completed("stop") for seq in seqs)


def test_one_that_is_replayed_keeps_its_arrival_and_is_never_told_that_it_waited_too_long():
    """R6 is about who never started; R2: an older one is served first."""
    house = desk(max_running=1, max_wait_s=5.0, max_replays=9)
    old, young = house.submit(300, 20), house.submit(300, 20)
    house.run(12)
    house.die(DIED)
    house.engine.now += 60
    house.decide()
    assert set(house.ended) == {young}
    late = house.submit(300, 20)
    live(house)
    done = [seq for state, seq in house.order if state == "done"]
    assert done == [young, old, late]
    assert house.ended[old].outcome == Completed("stop")


def test_what_has_still_to_be_repeated_counts_as_work_before_it():
    """Its length, what it stands at, and whether it is nearly done."""
    house = desk(max_running=1, finish_tokens=5, short_tokens=60)
    seq = house.submit(40, 100, answer=100)
    while len(house.tokens.get(seq, ())) < 97:
        house.run(1)
    assert house.scheduler.is_short(seq)
    house.die(DIED)
    assert not house.scheduler.is_short(seq)
    figures = house.scheduler.figures(seq, house.now)
    assert (figures.state, figures.read_tokens, figures.written_tokens) == (State.READING, 0, 97)
    house.run(4 + 30)
    assert not house.scheduler.is_short(seq)
    house.run(97 - 30)
    assert house.scheduler.is_short(seq)
    live(house)


def test_one_that_is_too_large_for_the_next_engine_ends_by_name():
    house = desk(pages=100)
    large, small = house.submit(1000, 40), house.submit(100, 40)
    house.run(20)
    house.die(DIED, pages=30)
    outcome = house.ended[large].outcome
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, PromptTooLong)
    assert live(house) == 0
    assert house.ended[small].outcome == Completed("stop")


def test_a_suspect_that_does_not_fit_beside_the_cleared_ones_waits_and_others_go_on():
    """The next engine is so small that what ran together no longer fits together."""
    house = desk(pages=100)
    seqs = [house.submit(300, 40) for _ in range(2)]
    while len(house.tokens.get(seqs[1], ())) < 3:
        house.run(1)
    house.die(DIED, pages=30)
    assert live(house) == 0
    assert all(house.ended[seq].outcome == Completed("stop") for seq in seqs)


def test_leaving_while_it_is_suspected_lets_the_next_go_on():
    """B25"""
    house = desk(max_running=2)
    decodes, _, reads, _ = one_of_each(house)
    house.die(DIED)
    house.withdraw(decodes)
    assert running(house) == [reads]
    house.withdraw(reads)
    assert live(house) == 0
    assert len(house.ended) == 4


def test_a_step_of_repeats_alone_counts_as_work_of_those_in_it():
    """So that it can be displaced like any other, and its engine time is its own."""
    house = desk()
    seq = house.submit(30, 40)
    house.run(20)
    written = len(house.tokens[seq])
    before = house.scheduler.figures(seq, house.now).engine_s
    house.die(DIED)
    repeats = [fact for fact in run_noting(house, written) if fact.again]
    assert len(repeats) == written - 1
    assert all(fact.rows == () for fact in repeats)
    spent = house.scheduler.figures(seq, house.now).engine_s - before
    assert spent == pytest.approx(house.work.alone_s(30, written))


def run_noting(house: Desk, steps: int) -> list[Decoded]:
    """Until the prompt is read again and so many steps but one are done."""
    noted: list[Decoded] = []
    while len(noted) < steps - 1:
        assert house.engine.advance()
        noted += [fact for fact in house.engine.facts if isinstance(fact, Decoded)]
        house.hear()
    return noted


def test_a_step_says_nothing_about_the_numbers_before_it():
    """Step numbers go on over a death, so an old `Took` can't be taken for a new one."""
    house = desk()
    house.submit(30, 40)
    house.run(5)
    before = house.steps[-1].n
    house.die(DIED)
    assert isinstance(house.steps[-1], Step)
    assert house.steps[-1].n > before
    live(house)
