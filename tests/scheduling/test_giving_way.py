"""Who gives way to whom, and who doesn't: the scheduler and a model engine, one history at a time."""

from __future__ import annotations

import pytest
from desk import Desk
from model_engine import Work

from strata.config import SchedulerSettings
from strata.messages import Cancelled, Completed, Seq


def desk(*, finishes_chunks: bool = False, pages: int = 1000, slices: int = 4, **named: object) -> Desk:
    chosen = SchedulerSettings(**{"chunk_tokens": 64, "max_running": 1, **named})
    return Desk(chosen, Work(slices=slices), pages=pages, finishes_chunks=finishes_chunks)


def ends(house: Desk) -> list[Seq]:
    return [seq for state, seq in house.order if state == "done"]


def parks(house: Desk, seq: Seq) -> dict[str, int]:
    figures = house.ended[seq].figures if seq in house.ended else house.scheduler.figures(seq, house.now)
    assert figures is not None
    return dict(figures.parks)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("preempt", ["chunk", "slice"])
def test_a_request_that_is_alone_never_parks_and_costs_nothing_over_preempt_off(rows: int, preempt: str):
    """B01: the same messages, the same engine time, whether it could give way or not."""
    runs = []
    for mode in (preempt, "off"):
        house = desk(preempt=mode, max_running=rows)
        alone = house.submit(300, 20)
        house.run()
        assert parks(house, alone) == {}
        runs.append((house.steps, house.engine.busy_s, house.ended[alone]))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("rows", [1, 8])
def test_a_short_request_sent_while_a_long_one_reads_starts_within_one_slice(rows: int):
    """B02: one park and one resume; long parks, short ends, long resumes, long ends."""
    house = desk(max_running=rows)
    long = house.submit(2000, 100)
    house.run(5)
    short = house.submit(30, 1)
    assert house.engine.step.read == long
    house.run(1)
    assert house.engine.step.read == short, "the very next slice is its own"
    house.run()
    events = [(state, seq) for state, seq in house.order if state in ("parked (reading)", "done") or seq == long]
    assert events[2:] == [
        ("parked (reading)", long),
        ("reading", long),
        ("done", short),
        ("decoding", long),
        ("done", long),
    ]
    assert parks(house, long) == {"short": 1}
    assert house.ended[long].figures.resumes == 1
    assert parks(house, short) == {}
    assert house.ended[long].figures.parked_s == pytest.approx(0.03)


def test_how_long_giving_way_took_is_counted_from_the_step_to_its_being_in_force():
    house = desk()
    house.submit(2000, 100)
    house.run(5)
    house.engine.deaf = 3
    house.submit(30, 1)
    house.run()
    now = house.scheduler.statistics(house.now)
    assert now.give_way_count == 1
    heard_after_its_first_slice = 3 * house.work.slice_s(64) + house.work.slice_s(30)
    assert now.give_way_longest_s == now.give_way_s == pytest.approx(heard_after_its_first_slice)


@pytest.mark.parametrize(("prompt", "max_tokens"), [(40, 20), (40, 400), (600, 20), (1500, 100)])
@pytest.mark.parametrize("named", [True, False])
def test_equals_of_like_length_that_arrive_together_end_in_order_of_arrival(prompt: int, max_tokens: int, named: bool):
    """B03: with one row, short or long, whether they name their length or not."""
    house = desk()
    three = [house.submit(prompt, max_tokens, answer=20, named_max=named, arrived=0.0) for _ in range(3)]
    house.run()
    assert ends(house) == three
    assert all(not parks(house, seq) for seq in three)


def test_who_came_first_is_served_first_though_its_submit_was_slower():
    house = desk()
    running = house.submit(40, 20)
    second = house.submit(40, 20, arrived=0.2)
    first = house.submit(40, 20, arrived=0.1)
    house.run()
    assert ends(house) == [running, first, second]


def test_with_preempt_off_and_one_row_all_are_served_whole_and_in_order():
    """B03: that is the policy `fifo`."""
    house = desk(preempt="off")
    long = house.submit(2000, 100)
    house.run(5)
    others = [house.submit(10, 2), house.submit(1000, 5), house.submit(1, 1)]
    house.run()
    assert ends(house) == [long, *others]
    assert not house.scheduler.statistics(house.now).parks


def test_a_step_that_comes_as_the_read_ends_parks_the_answer_and_loses_no_token():
    """B04: the park crosses the end of the prompt; the first token counts, and the answer goes on later."""
    house = desk()
    long = house.submit(300, 100)
    while house.engine.sequences.get(long) is None or house.engine.sequences[long].position < 256:
        house.run(1)
    house.engine.deaf = 4
    urgent = house.submit(30, 3, priority=1)
    house.run(4)
    assert house.state(long) == "parked (decoding)"
    assert house.tokens[long] == [1]
    house.run()
    assert house.tokens[long] == list(range(1, 101))
    assert house.tokens[urgent] == [1, 2, 3]
    assert parks(house, long) == {"level": 1}


def test_a_step_that_comes_after_its_reader_has_ended_parks_nobody_else():
    """B04: the parked one's last token crosses; the next request is not parked by it, nor is the step lost."""
    house = desk()
    first = house.submit(30, 2)
    house.run(4)
    house.engine.deaf = 5
    urgent = house.submit(30, 3, priority=1)
    waiting = house.submit(30, 3)
    house.run()
    assert parks(house, first) == {"level": 1}
    assert house.ended[first].figures.resumes == 0
    assert parks(house, urgent) == parks(house, waiting) == {}
    assert ends(house) == [first, urgent, waiting]


def test_a_park_that_was_taken_back_before_it_came_parks_nobody():
    """B04: older steps that come late are passed over by the newest."""
    house = desk()
    long = house.submit(1000, 10)
    house.run(4)
    house.engine.deaf = 4
    short = house.submit(10, 1)
    house.withdraw(short)
    assert house.state(long) == "reading"
    house.run()
    assert house.engine.parked_in_chunk == []
    assert house.tokens[long] == list(range(1, 11))


def test_facts_of_the_run_before_do_not_count_as_a_run_since_the_resume():
    """B04: the same one again, after it resumed, is not parked before its first slice."""
    house = desk()
    long = house.submit(1000, 10)
    house.run(4)
    house.engine.deaf = 3
    left = house.submit(10, 1)
    house.withdraw(left)
    late = house.submit(10, 1)
    assert house.state(late) == "queued", "the long one has resumed and not run since"
    house.engine.advance()
    house.hear()
    assert house.state(late) == "queued", "that slice was run under the step before"
    house.run()
    assert ends(house) == [left, late, long]
    assert parks(house, long) == {"short": 2}


def test_parks_are_counted_over_the_whole_life_by_reason():
    """B05: resuming does not reset the count."""
    house = desk()
    long = house.submit(3000, 100)
    for turn in range(3):
        house.run(6)
        house.run(until=house.submit(30, 1, priority=turn % 2))
    house.run()
    assert parks(house, long) == {"short": 2, "level": 1}
    assert house.ended[long].figures.resumes == 3
    assert house.ended[long].figures.parked_s_by == pytest.approx({"short": 0.06, "level": 0.03})
    parked = [change for change in house.order if change == ("parked (reading)", long)]
    assert len(parked) == 3


def test_max_parks_can_not_be_evaded_by_resuming():
    """B05: the cap is on parks by equals over its life; a higher priority is not bound by it."""
    house = desk(max_parks=2)
    long = house.submit(3000, 100)
    for _ in range(2):
        house.run(6)
        house.run(until=house.submit(30, 1))
    house.run(6)
    third = house.submit(30, 1)
    house.run(6)
    assert house.state(third) == "queued"
    house.run(until=house.submit(30, 1, priority=1))
    house.run()
    assert parks(house, long) == {"short": 2, "level": 1}


def test_below_min_park_tokens_a_read_is_not_parked_for_an_equal():
    house = desk(min_park_tokens=500)
    house.submit(3000, 100)
    house.run(8)
    short = house.submit(30, 1)
    house.run(8)
    assert house.state(short) == "queued"
    house.run(until=short)
    assert house.engine.sequences[Seq(1)].position in range(448, 513)


def test_no_read_gives_way_to_one_that_could_not_start():
    """B08: long + long + short with two slots, and pages for one long, neither deadlocks nor spins."""
    house = desk(max_running=2, pages=33 + 3)
    first, second = house.submit(500, 20), house.submit(500, 20)
    house.run(5)
    short = house.submit(30, 20, priority=1)
    house.run()
    assert ends(house) == [first, short, second]
    assert not house.scheduler.statistics(house.now).parks
    assert len(house.steps) < 10


def test_no_read_gives_way_for_a_row_that_would_not_be_free():
    """B08: both rows answer; a long one waits for a row, and nobody is parked for it."""
    house = desk(max_running=2)
    answers = [house.submit(30, 50), house.submit(30, 50)]
    house.run(12)
    assert [house.state(seq) for seq in answers] == ["decoding", "decoding"]
    long = house.submit(2000, 50)
    house.run()
    assert ends(house) == [*answers, long]
    assert not house.scheduler.statistics(house.now).parks


@pytest.mark.parametrize(("left", "gives_way"), [(3, True), (2, True), (1, False)])
def test_a_read_with_less_than_two_slices_left_is_not_displaced_by_an_equal(left: int, gives_way: bool):
    """B14: it is but for a higher priority."""
    for priority in (0, 1):
        house = desk()
        long = house.submit(256, 2)
        house.run(4 * 4 - left)
        house.submit(1, 1, priority=priority)
        parked = house.state(long) == "parked (reading)"
        assert parked == (gives_way or priority == 1)


def test_a_last_chunk_of_one_slice_is_not_displaced_by_an_equal():
    """B14: an engine that does a chunk in one slice never says how many slices there are."""
    house = desk(slices=1)
    long = house.submit(256, 2)
    house.run(3)
    assert house.engine.sequences[long].position == 192
    house.submit(1, 1)
    assert house.state(long) == "reading"
    house = desk(slices=1)
    long = house.submit(256, 2)
    house.run(2)
    house.submit(1, 1)
    assert house.state(long) == "parked (reading)"


def test_an_answer_is_not_parked_for_an_equal_that_is_not_short():
    """B14: nor for one of its own length; a higher priority takes its row."""
    house = desk(short_tokens=100)
    answer = house.submit(30, 300)
    house.run(10)
    house.submit(30, 200)
    house.run(5)
    assert house.state(answer) == "decoding"
    house.submit(30, 200, priority=1)
    assert house.state(answer) == "parked (decoding)"
    assert parks(house, answer) == {"level": 1}


@pytest.mark.parametrize("rows", [1, 2])
def test_a_long_answer_gives_its_row_to_a_short_one_when_none_is_free(rows: int):
    house = desk(max_running=rows, short_tokens=100)
    answers = [house.submit(30, 300) for _ in range(rows)]
    house.run(20)
    short = house.submit(30, 10)
    assert house.state(answers[-1]) == "parked (decoding)", "the last in rank"
    house.run()
    assert ends(house) == [short, *answers]
    assert parks(house, answers[-1]) == {"short": 1}


def test_an_answer_that_is_nearly_done_is_not_parked_for_an_equal():
    house = desk(short_tokens=100, finish_tokens=32)
    answer = house.submit(30, 150)
    house.run(4 + 150 - 32)
    short = house.submit(30, 10)
    house.run(3)
    assert house.state(answer) == "decoding"
    house.run()
    assert ends(house) == [answer, short]


def test_short_ones_that_wait_for_the_one_row_do_not_ping_pong_with_a_long_answer():
    house = desk(short_tokens=100)
    answer = house.submit(30, 300)
    house.run(20)
    shorts = [house.submit(30, 10) for _ in range(5)]
    house.run()
    assert ends(house) == [*shorts, answer]
    assert parks(house, answer) == {"short": 1}


def test_a_parked_answer_has_nothing_to_read_and_does_not_take_the_engine_back_by_that():
    """Need 1 against a half rule: 64 parks, and the read 16 times slower."""
    house = desk(short_tokens=100, finish_tokens=0)
    oldest = house.submit(30, 1000)
    house.run(10)
    house.submit(40, 50)
    house.run()
    assert parks(house, oldest) == {"short": 1}


def test_idle_time_earns_nothing_and_a_spent_purse_lets_nobody_pass():
    """B15: the purse is what it was, however long nobody ran."""
    house = desk(pass_burst_s=0.05, order_share=0.5)
    long = house.submit(6000, 4, seq=Seq(9001))
    house.run(4)
    house.run(until=house.submit(120, 2))
    spent = house.scheduler.statistics(house.now).purses[0]
    assert spent < -0.05
    house.engine.now += 3600
    house.decide()
    assert house.scheduler.statistics(house.now).purses[0] == spent
    short = house.submit(30, 1)
    house.run(3)
    assert house.state(long) == "reading"
    assert house.state(short) == "queued"
    house.run(until=short)
    assert parks(house, long) == {"short": 2}, "as soon as the oldest has earned it"


def test_the_oldest_takes_the_engine_back_once_it_was_passed_for_long_enough():
    """R3.3: and who had its turn does not pass again."""
    house = desk(pass_burst_s=0.2, finish_tokens=0)
    long = house.submit(3000, 4)
    house.run(4)
    greedy = house.submit(30, 200)
    house.run(40)
    assert house.state(long) == "reading"
    assert parks(house, greedy) == {"purse": 1}
    house.run()
    assert ends(house) == [long, greedy]
    assert parks(house, long) == {"short": 1}


def test_a_read_that_had_its_turn_does_not_pass_again():
    """R3.2: though the purse has something in it soon after, and it has far less to read."""
    house = desk(pass_burst_s=0.2, finish_tokens=0, turn_wait_s=1000.0)
    long = house.submit(6000, 4)
    house.run(4)
    passes = house.submit(2500, 4)
    house.run()
    assert ends(house) == [long, passes]
    assert parks(house, passes) == {"purse": 1}
    assert parks(house, long) == {"short": 1}


def test_a_short_one_that_others_spent_the_purse_for_passes_as_soon_as_it_may():
    """R3.2: it was seen to be sent back after a slice, and then to wait for a whole long read, passed by newcomers.

    The long one is older: it came first, and its words were counted for longer.
    """
    house = desk(pass_burst_s=0.2, order_share=0.5, finish_tokens=0, max_running=8, turn_wait_s=1000.0)
    first = house.submit(6000, 4)
    house.run(4)
    greedy = house.submit(2500, 4)
    while house.scheduler.statistics(house.now).purses.get(0, 0.2) > -0.18:
        house.run(1)
    house.withdraw(first)
    house.withdraw(greedy)
    came = house.now
    short = house.submit(120, 1)
    house.run(1)
    long = house.submit(12_000, 4, arrived=came - 0.01)
    house.run(4)
    assert house.state(short) == "parked (reading)"
    later = house.submit(120, 1)
    house.run(until=later)
    assert parks(house, short) == {"purse": 1}
    assert ends(house)[-2:] == [short, later]
    assert house.state(long) != "done"


def test_a_younger_one_takes_no_answers_row_by_a_spent_purse():
    """R3.3: only the oldest, and only from one that passes it."""
    house = desk(max_running=2, pass_burst_s=0.0)
    answers = [house.submit(30, 60), house.submit(30, 60)]
    house.run(12)
    younger = house.submit(2000, 50)
    house.run(20)
    assert house.state(younger) == "queued"
    assert [house.state(seq) for seq in answers] == ["decoding", "decoding"]


def test_a_parked_answer_gets_the_next_row_before_another_short_one_reads():
    """R2: with several rows the oldest waits for a row, and short reads give it the first that is free."""
    house = desk(max_running=2, short_tokens=100)
    answers = [house.submit(30, 300) for _ in range(2)]
    house.run(20)
    first, second = house.submit(30, 10), house.submit(30, 10)
    house.run()
    assert ends(house)[:2] == [first, second]
    before = house.order[: house.order.index(("reading", second))]
    assert before.count(("decoding", answers[1])) == 2, "it began to answer, and it resumed"
    assert parks(house, answers[1]) == {"short": 2}


def test_an_answer_that_has_resumed_runs_a_step_before_it_is_displaced():
    """R3: no run of less than a slice, however high the one that waits."""
    house = desk(max_running=2)
    answers = [house.submit(30, 100), house.submit(30, 100)]
    house.run(20)
    above = house.submit(30, 2, priority=1)
    house.run(until=above)
    assert house.state(answers[1]) == "decoding"
    house.engine.deaf = 2
    higher = house.submit(30, 2, priority=2)
    assert house.state(higher) == "queued"
    house.run(2)
    assert house.state(higher) == "queued", "those steps were decoded without it"
    house.run(2)
    assert house.state(answers[1]) == "parked (decoding)"
    assert parks(house, answers[1]) == {"level": 2}


def test_a_higher_priority_goes_first_and_a_lower_one_never_interrupts_a_read():
    house = desk(max_running=4)
    low = house.submit(2000, 50, priority=-1)
    house.run(3)
    high = house.submit(1000, 50, priority=5)
    house.run(2)
    assert house.engine.step.read == high
    house.submit(10, 1)
    house.run(3)
    assert house.engine.step.read == high
    house.run()
    assert parks(house, high) == {}
    assert parks(house, low).keys() == {"level"}


@pytest.mark.parametrize("finishes_chunks", [True, False])
@pytest.mark.parametrize("deaf", [0, 1, 2, 3, 4])
def test_with_preempt_chunk_a_read_gives_way_at_the_end_of_a_chunk_only(deaf: int, finishes_chunks: bool):
    """Wherever the message meets it, and whatever the engine makes of a chunk begun beyond `read_until`."""
    for boundaries in range(1, 9):
        house = desk(preempt="chunk", finishes_chunks=finishes_chunks)
        long = house.submit(640, 20)
        house.run(boundaries)
        house.engine.deaf = deaf
        short = house.submit(30, 3)
        house.run()
        assert house.engine.parked_in_chunk == []
        assert ends(house) == [short, long]
        assert parks(house, long) == {"short": 1}
        waited = house.ended[short].figures.queue_s
        left = -(boundaries + deaf) % 4
        if not deaf and not boundaries % 4:
            left = 4  # It had begun the next chunk, for all that the scheduler could know.
        assert waited == pytest.approx((deaf + left) * house.work.slice_s(64)), "the chunk in which the message met it"


def test_with_preempt_chunk_the_read_goes_on_when_the_waiter_has_left():
    house = desk(preempt="chunk")
    long = house.submit(640, 5)
    house.run(2)
    short = house.submit(30, 3)
    assert house.steps[-1].read_until == 64
    house.run(2)
    house.withdraw(short, Cancelled("client"))
    assert house.steps[-1].read_until is None
    house.run()
    assert house.ended[long].outcome == Completed("stop")


def test_a_short_read_may_hold_up_those_that_decode_and_a_long_one_may_not():
    """R4: the parameters of the step; the engine keeps the account."""
    house = desk(max_running=4, short_tokens=500, read_share=0.3, decode_gap_s=0.1)
    house.submit(30, 400)
    house.run(10)
    house.submit(2000, 100)
    assert (house.steps[-1].read_share, house.steps[-1].gap_s) == (0.3, 0.0)
    house.run(10)
    house.submit(100, 100)
    house.run(1)
    assert house.steps[-1].gap_s == 0.1


def test_rows_that_are_free_are_filled_and_all_that_answer_are_in_the_step():
    """R8: one reads, the others decode."""
    house = desk(max_running=3)
    three = [house.submit(30, 100) for _ in range(3)]
    fourth = house.submit(30, 100)
    house.run(30)
    assert house.steps[-1].decode == tuple(three)
    assert house.state(fourth) == "queued"
    house.withdraw(three[1])
    assert house.steps[-1].decode == (three[0], three[2])
    assert house.steps[-1].read == fourth


def test_figures_add_up_and_nothing_another_did_changes_them():
    house = desk(max_running=2)
    first = house.submit(128, 5)
    house.run(until=first)
    before = house.ended[first].figures
    assert before.engine_s == pytest.approx(house.work.alone_s(128, 5))
    assert before.ttft_s == pytest.approx(0.128)
    assert before.longest_gap_s == pytest.approx(house.work.step_s)
    house.submit(1000, 50)
    house.run()
    assert house.ended[first].figures == before


def test_the_history_of_a_request_names_every_state_with_its_time_and_reason():
    house = desk()
    long = house.submit(640, 2)
    house.run(4)
    short = house.submit(30, 1)
    house.run(until=short)
    told = [(str(change.state), change.reason) for change in house.scheduler.history(long)]
    assert told == [("queued", "submitted"), ("reading", "rank"), ("parked (reading)", "short"), ("reading", "rank")]
    times = [change.at for change in house.scheduler.history(long)]
    assert times == sorted(times)
