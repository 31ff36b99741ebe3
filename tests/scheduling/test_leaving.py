"""Leaving: in any state, before the submit too, and without a trace."""

from __future__ import annotations

import pytest
from attrs import evolve
from desk import Desk

from strata.config import SchedulerSettings
from strata.errors import EngineUnavailable, IllegalTransition, SequenceFailed
from strata.messages import Cancelled, Close, Completed, Decoded, Failed, Progress, Row, Seq, Step
from strata.scheduling.lifecycle import Change, State
from strata.scheduling.recent import Recent
from strata.scheduling.record import HISTORY, History


def desk(**named: object) -> Desk:
    return Desk(SchedulerSettings(**{"chunk_tokens": 64, "max_running": 1, **named}))


def test_a_queued_client_that_leaves_is_never_started_and_leaves_no_trace():
    """B20: in no gauge, no ledger, no message."""
    house = desk()
    house.submit(500, 20)
    house.run(3)
    before, steps = house.scheduler.statistics(house.now), len(house.steps)
    queued = house.submit(500, 20)
    assert house.withdraw(queued)
    assert evolve(house.scheduler.statistics(house.now), ended={}) == before
    assert house.ended[queued].outcome == Cancelled("client")
    house.run()
    assert queued not in house.tokens
    assert Close(queued) not in house.engine.inbox
    assert all(step.read != queued for step in house.steps[steps:])


def test_a_client_that_leaves_while_parked_frees_its_pages_at_once():
    """B22: while another request runs, and without waiting for the engine to hear of it."""
    house = desk()
    long = house.submit(1000, 20)
    house.run(6)
    house.submit(30, 20)
    house.run(2)
    assert house.state(long) == "parked (reading)"
    assert house.scheduler.statistics(house.now).half_read == 2
    running = house.steps[-1]
    house.withdraw(long)
    now = house.scheduler.statistics(house.now)
    assert now.pages_held == 3
    assert now.pages_reserved == 4
    assert now.half_read == 1
    assert house.steps[-1] == running
    assert list(house.engine.inbox) == [Close(long)]


def test_a_client_that_leaves_while_its_prompt_is_read_is_out_of_the_next_step():
    """B21: the close and the step that leaves it out go together."""
    house = desk()
    long = house.submit(1000, 20)
    house.run(6)
    house.withdraw(long)
    close, step = house.engine.inbox
    assert close == Close(long)
    assert isinstance(step, Step)
    assert step.read is None
    house.run(1)
    assert house.engine.sequences == {}


def test_no_step_includes_a_client_that_left_while_decoding():
    """B23: and what was decoded for it meanwhile is dropped."""
    house = desk(max_running=4)
    leaves, stays = house.submit(30, 50), house.submit(30, 50)
    house.run(20)
    house.engine.deaf = 3
    house.withdraw(leaves)
    assert house.steps[-1].decode == (stays,)
    written = len(house.tokens[leaves])
    house.run()
    assert len(house.tokens[leaves]) == written == house.ended[leaves].figures.written_tokens
    assert house.tokens[stays] == list(range(1, 51))


@pytest.mark.parametrize("when", ["queued", "parked (reading)", "reading", "decoding", "done"])
def test_a_cancel_names_one_request_and_changes_no_other(when: str):
    """B24: the others' tokens and ends are what they would have been."""
    house = desk(max_running=2)
    others = [house.submit(200, 30), house.submit(30, 30)]
    house.run(3)
    one = house.submit(300, 5)
    if when == "parked (reading)":
        house.run(until=others[0])
        others.append(house.submit(20, 2))
    for _ in range(2000):
        if when == (house.state(one) or "done"):
            break
        house.run(1)
    ended = house.withdraw(one)
    assert ended == (when != "done")
    house.run()
    for other in others:
        assert house.tokens[other] == list(range(1, house.asked[other].max_tokens + 1))
        assert house.ended[other].outcome == Completed("stop")


def test_a_cancel_before_its_submit_is_remembered_and_the_submit_dropped():
    """B25: nothing of it is left."""
    house = desk()
    assert not house.withdraw(Seq(7))
    house.submit(30, 3, seq=Seq(7))
    house.run()
    assert house.ended == {}
    assert house.steps == []
    assert house.scheduler.statistics(0.0).states == {}


def test_a_cancel_between_start_and_the_engines_hearing_of_it_leaves_nothing():
    """B25: the open and the close lie in the same inbox."""
    house = desk()
    one = house.submit(300, 3)
    house.withdraw(one)
    assert house.scheduler.statistics(0.0).pages_held == 0
    house.run()
    assert house.engine.sequences == {}
    assert house.tokens == {}


def test_a_cancel_between_the_last_token_and_its_end_changes_nothing():
    """B25: the terminal event was sent; withdrawing says that it had ended."""
    house = desk()
    one = house.submit(30, 3)
    house.run()
    end = house.ended[one]
    assert not house.withdraw(one)
    assert house.scheduler.take_ended() == ()
    assert house.ended[one] == end


def test_a_stop_string_completes_the_request_and_drops_what_was_decoded_after_it():
    house = desk()
    one = house.submit(30, 50)
    house.run(10)
    house.withdraw(one, Completed("stop"))
    house.run()
    assert house.ended[one].outcome == Completed("stop")
    assert house.scheduler.statistics(house.now).ended == {"completed": 1}


def test_a_sequence_that_fails_takes_no_other_with_it():
    """B33: it is closed by the engine, so no close is sent."""
    house = desk(max_running=2)
    fails, goes_on = house.submit(30, 50), house.submit(30, 50)
    house.run(20)
    house.engine.fail(fails)
    house.run()
    outcome = house.ended[fails].outcome
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, SequenceFailed)
    assert house.tokens[goes_on] == list(range(1, 51))


def test_when_the_engine_dies_all_with_state_in_it_fail_and_queued_ones_stay():
    """B30: one reads, one is parked, one decodes, one is queued; the next engine serves that one."""
    house = desk(max_running=2)
    decodes = house.submit(30, 200)
    house.run(10)
    parked = house.submit(2000, 5)
    house.run(10)
    reads = house.submit(300, 5)
    house.run(2)
    queued = house.submit(2000, 5)
    states = [house.state(seq) for seq in (decodes, parked, reads, queued)]
    assert states == ["decoding", "parked (reading)", "reading", "queued"]
    house.die(EngineUnavailable("the engine died"))
    assert set(house.ended) == {decodes, parked, reads}
    house.run()
    assert house.ended[queued].outcome == Completed("stop")
    assert house.scheduler.statistics(house.now).pages_free == house.pages


def test_facts_about_one_that_is_forgotten_are_dropped():
    house = desk()
    one = house.submit(30, 5)
    house.run(2)
    house.withdraw(one)
    scheduler = house.scheduler
    assert scheduler.decoded(Decoded(1, (Row(one, 3), Row(Seq(77), 4)), 0.1), house.now) == ()
    scheduler.progressed(Progress(one, 0, 2, 4, 0.1), house.now)
    scheduler.wants(one, house.now)
    scheduler.failed(one, SequenceFailed("overflow"), house.now)
    assert scheduler.take_ended() == ()


def test_several_tokens_of_one_step_all_count_and_the_last_may_end_it():
    house = desk(max_running=4)
    one, other = house.submit(30, 50), house.submit(30, 50)
    house.run(20)
    scheduler, now = house.scheduler, house.now
    before = {seq: scheduler.figures(seq, now) for seq in (one, other)}
    rows = (Row(one, 3), Row(one, 4), Row(one, 2, "stop"), Row(other, 5))
    assert scheduler.decoded(Decoded(1, rows, 0.4, drafted=3, accepted=2), now) == rows
    [ended] = scheduler.take_ended()
    assert (ended.seq, ended.outcome) == (one, Completed("stop"))
    for seq, figures, count in ((one, ended.figures, 3), (other, scheduler.figures(other, now), 1)):
        assert figures.written_tokens == before[seq].written_tokens + count
        assert figures.engine_s == pytest.approx(before[seq].engine_s + 0.1 * count)


def test_each_end_is_told_once_and_its_record_goes_with_the_next():
    house = desk()
    scheduler = house.scheduler
    scheduler.submit(Seq(1), prompt_tokens=9, max_tokens=9, priority=0, arrived=0.0, named_max=True, now=0.0)
    scheduler.withdraw(Seq(1), Cancelled("client"), 2.0)
    (end,) = scheduler.take_ended()
    assert (end.seq, end.outcome, end.figures.queue_s, end.figures.total_s) == (Seq(1), Cancelled("client"), 2.0, 2.0)
    assert [change.reason for change in scheduler.history(Seq(1))] == ["submitted", "cancelled by client"]
    assert scheduler.take_ended() == ()
    assert scheduler.history(Seq(1)) == ()
    assert scheduler.figures(Seq(1), 3.0) is None


def test_a_number_is_used_but_once():
    house = desk()
    one = house.submit(30, 5)
    with pytest.raises(IllegalTransition, match="twice"):
        house.submit(30, 5, seq=one)
    house.run()
    with pytest.raises(IllegalTransition, match="twice"):
        house.submit(30, 5, seq=one)


def test_of_a_long_history_the_first_and_the_last_changes_are_kept():
    history = History()
    for number in range(3 * HISTORY):
        history.add(Change(State.READING, float(number), ""))
    times = [change.at for change in history.all()]
    assert len(times) == HISTORY
    assert times[: HISTORY // 2] == list(range(HISTORY // 2))
    assert times[-1] == 3 * HISTORY - 1


def test_names_that_left_before_a_submit_do_not_pile_up():
    recent = Recent(3)
    for number in range(10):
        recent.add(Seq(number))
    assert len(recent) == 3
    assert Seq(9) in recent
    assert not recent.discard(Seq(0))
    assert recent.discard(Seq(8))
    assert not recent.discard(Seq(8))
