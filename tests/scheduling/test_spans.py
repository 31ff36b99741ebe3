"""Facts in sum say what single facts say, and how far nothing can change is said before it does."""

from __future__ import annotations

from math import inf

from attrs import evolve

from strata.config import SchedulerSettings
from strata.messages import ChunkRead, Decoded, Progress, Row, Seq
from strata.scheduling import Scheduler
from strata.scheduling.decision import Statistics
from strata.scheduling.spans import ANY, ONE, ChunksRead, Span, SpanScheduler, Steady

ONLY = Seq(1)


def started(kind: type[Scheduler], settings: SchedulerSettings, *, read: bool) -> Scheduler:
    """With one request under way, that has read its prompt or not; its step is in force."""
    scheduler = kind(settings, pages=100, page_tokens=16)
    submit(scheduler, ONLY, 256, now=0.0)
    decide(scheduler, 0.0)
    if read:
        scheduler.chunk_read(ChunkRead(ONLY, 256, 0.5), 0.5)
        scheduler.decoded(Decoded(1, (Row(ONLY, 0),), 0.0), 0.5)
        decide(scheduler, 0.5)
    return scheduler


def submit(scheduler: Scheduler, seq: Seq, prompt: int, *, now: float, named_max: bool = True) -> None:
    scheduler.submit(seq, prompt_tokens=prompt, max_tokens=100, priority=0, arrived=now, named_max=named_max, now=now)


def decide(scheduler: Scheduler, now: float) -> None:
    decision = scheduler.decide(now)
    if decision.step is not None:
        scheduler.took(decision.step.n, now)


def counts(scheduler: Scheduler, now: float) -> Statistics:
    """But for the pages that were granted so far: spans are for who has no memory behind them."""
    return evolve(scheduler.statistics(now), pages_free=0, pages_held=0)


def spans(settings: SchedulerSettings, *, read: bool) -> SpanScheduler:
    scheduler = started(SpanScheduler, settings, read=read)
    assert isinstance(scheduler, SpanScheduler)
    return scheduler


def test_slices_in_sum_are_those_slices() -> None:
    settings = SchedulerSettings(max_running=1)
    single, summed = started(Scheduler, settings, read=False), spans(settings, read=False)
    for scheduler in (single, summed):
        submit(scheduler, Seq(2), 200, now=0.0)
        decide(scheduler, 0.0)
    for done in (1, 2, 3):
        single.progressed(Progress(ONLY, 0, done, 8, 0.25), done / 4)
    summed.ran(Span(reader=ONLY, slices=3, slices_s=0.75, done=3, total=8), 0.75)
    assert counts(single, 0.75) == counts(summed, 0.75)
    assert single.figures(ONLY, 0.75) == summed.figures(ONLY, 0.75)


def test_whole_chunks_in_sum_are_those_chunks() -> None:
    settings = SchedulerSettings(max_running=1, chunk_tokens=64)
    single, summed = started(Scheduler, settings, read=False), spans(settings, read=False)
    for scheduler in (single, summed):
        submit(scheduler, Seq(2), 200, now=0.0)
        decide(scheduler, 0.0)
    for position, seconds in ((64, 0.25), (128, 0.5)):
        single.progressed(Progress(ONLY, position // 64 - 1, 1, 2, seconds), seconds)
        single.chunk_read(ChunkRead(ONLY, position, seconds), seconds)
    fact = ChunksRead(seq=ONLY, position=128, slices=4, seconds=1.5, longest_s=1.0, last=(64, 2))
    summed.chunks_read(fact, 0.5)
    assert counts(single, 0.5) == counts(summed, 0.5)
    assert single.figures(ONLY, 0.5) == summed.figures(ONLY, 0.5)


def test_steps_in_sum_are_those_steps_and_a_last_token_ends_its_answer() -> None:
    settings = SchedulerSettings(max_running=1)
    single, summed = started(Scheduler, settings, read=True), spans(settings, read=True)
    for step in (1, 2, 3, 4):
        row = Row(ONLY, 0, "length" if step == 4 else None)
        single.decoded(Decoded(2, (row,), 0.25), 0.5 + step / 4)
    span = Span(
        rows=(ONLY,),
        steps=4,
        steps_s=1.0,
        longest_step_s=0.25,
        first_at=0.75,
        last_at=1.5,
        longest_gap_s=0.25,
        ended=(ONLY,),
    )
    summed.ran(span, 1.5)
    assert counts(single, 1.5) == counts(summed, 1.5)
    one, other = single.take_ended(), summed.take_ended()
    assert one == other
    assert one[0].figures.written_tokens == 5
    assert summed.take_ended() == ()


def test_nothing_can_change_while_nobody_waits() -> None:
    assert spans(SchedulerSettings(), read=False).steady(0.0) is ANY
    assert spans(SchedulerSettings(), read=True).steady(0.5) is ANY


def test_a_step_that_is_on_its_way_must_be_heard_of_first_where_an_answer_may_lose_its_row() -> None:
    scheduler = spans(SchedulerSettings(max_running=2), read=True)
    submit(scheduler, Seq(2), 200, now=0.5)
    submit(scheduler, Seq(3), 200, now=0.5)
    assert scheduler.decide(0.5).step is not None
    assert scheduler.steady(0.5) is ONE


def test_until_a_reader_that_is_on_its_way_has_begun_there_is_nothing_to_decide() -> None:
    scheduler = spans(SchedulerSettings(max_running=1, pass_burst_s=0.0), read=False)
    submit(scheduler, Seq(2), 200, now=0.0)
    submit(scheduler, Seq(3), 200, now=0.0)
    scheduler.chunk_read(ChunkRead(ONLY, 256, 0.5), 0.5)
    scheduler.decoded(Decoded(1, (Row(ONLY, 0, "length"),), 0.0), 0.5)
    assert scheduler.decide(0.5).step is not None
    assert scheduler.steady(0.5) == Steady(begins=True)
    assert scheduler.decide(0.5).step is None


def test_a_reader_can_be_displaced_from_its_first_slice_on_and_then_until_its_purse_is_empty() -> None:
    settings = SchedulerSettings(max_running=1, pass_burst_s=2.0, order_share=0.25)
    scheduler = spans(settings, read=False)
    submit(scheduler, Seq(2), 250, now=0.0)
    decide(scheduler, 0.0)
    assert scheduler.steady(0.0).slices == 1
    scheduler.progressed(Progress(ONLY, 0, 1, 8, 0.25), 0.25)
    decide(scheduler, 0.25)
    steady = scheduler.steady(0.25)
    # It is the oldest itself: it earns, and the purse is full.
    assert (steady.slices, steady.paid_s, steady.chunks) == (inf, inf, 0)


def test_an_answer_is_looked_at_again_where_its_end_begins_to_spare_it() -> None:
    settings = SchedulerSettings(max_running=1, finish_tokens=20, expect_new_tokens=30)
    scheduler = spans(settings, read=True)
    submit(scheduler, Seq(2), 250, now=0.5)
    decide(scheduler, 0.5)
    assert scheduler.steady(0.5).steps == 100 - 20 - 1


def test_first_come_first_served_has_nothing_to_decide_before_somebody_ends() -> None:
    scheduler = spans(SchedulerSettings(max_running=1, preempt="off"), read=False)
    submit(scheduler, Seq(2), 250, now=0.0)
    decide(scheduler, 0.0)
    assert scheduler.steady(0.0) is ANY
    assert spans(SchedulerSettings(max_running=1, preempt="chunk"), read=False).steady(0.0) is ANY


def test_giving_way_at_chunk_ends_is_decided_at_every_boundary() -> None:
    scheduler = spans(SchedulerSettings(max_running=1, preempt="chunk"), read=False)
    submit(scheduler, Seq(2), 250, now=0.0)
    decide(scheduler, 0.0)
    assert scheduler.steady(0.0) is ONE
