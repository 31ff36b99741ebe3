"""The dispatcher by itself: what it is told, in one turn, and what it tells whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from trio.testing import MockClock

from strata.actors.dispatcher import Dispatcher, Drain, Enlist, NoEngine, Replacing, ToRequest
from strata.actors.kernel import Mailbox, Ref, Registry, open_supervisor
from strata.actors.memory import KEPT
from strata.config import SchedulerSettings
from strata.errors import ConfigError, EngineUnavailable, InvalidRequest, PromptTooLong, ShuttingDown, WaitedTooLong
from strata.messages import (
    PROTOCOL,
    Accepted,
    Cancelled,
    ChunkRead,
    Close,
    Completed,
    Decoded,
    Ended,
    EngineDied,
    Failed,
    Grant,
    Open,
    Ready,
    Refused,
    Row,
    Sampling,
    Seq,
    Step,
    Stopped,
    Submit,
    SwapOut,
    SwappedOut,
    Tokens,
    Took,
    Wants,
    Withdraw,
)
from strata.metrics import Metrics
from strata.scheduling.prefix import chain

READY = Ready(
    incarnation=1,
    protocol=PROTOCOL,
    pages=16,
    page_tokens=64,
    context=1024,
    workspaces=2,
    chunk_tokens=64,
    device="none",
)


DIED = EngineDied("a bus error", 3)


def take(mailbox: Mailbox[Any]) -> list[Any]:
    messages = []
    while mailbox.depth:
        messages.append(mailbox.take_nowait())
    return messages


@define
class Bench:
    """A dispatcher with nobody behind the refs: what it tells stays in their mailboxes."""

    dispatcher: Dispatcher
    metrics: Metrics
    engine: Mailbox[Any] = field(factory=Mailbox)
    readers: dict[int, Mailbox[ToRequest]] = field(factory=dict)
    now: float = 0.0

    @classmethod
    def make(cls, **settings: Any) -> Bench:
        chosen = SchedulerSettings(chunk_tokens=64, **settings)
        metrics = Metrics("model")
        bench = cls(Dispatcher(chosen, metrics), metrics)
        bench.dispatcher.expect(Ref("engine", bench.engine))
        return bench

    def turn(self, *messages: Any) -> list[Any]:
        """One turn; what the engine was told in it."""
        self.now += 1.0
        self.dispatcher.turn(messages, self.now)
        return take(self.engine)

    def enlist(self, seq: int, *, tokens: int = 40, max_tokens: int = 10, named_max: bool = True) -> Enlist:
        self.readers[seq] = Mailbox()
        submit = Submit(
            Seq(seq),
            (7,) * tokens,
            Sampling(max_tokens=max_tokens),
            priority=0,
            arrived=self.now,
            named_max=named_max,
            prefix=chain((7,) * tokens, READY.page_tokens),
        )
        return Enlist(submit, Ref(f"request-{seq}", self.readers[seq]))

    def told(self, seq: int) -> list[ToRequest]:
        return take(self.readers[seq])


async def started(*seqs: int, **settings: Any) -> Bench:
    """A bench on which these were enlisted in one turn."""
    await trio.lowlevel.checkpoint()
    bench = Bench.make(**settings)
    bench.turn(READY)
    bench.turn(*(bench.enlist(seq) for seq in seqs))
    return bench


def kinds(messages: Iterable[Any]) -> list[type]:
    return [type(message) for message in messages]


async def test_a_request_that_starts_is_opened_granted_and_then_stepped() -> None:
    bench = Bench.make()
    assert bench.turn(READY) == []
    opened, granted, step = bench.turn(bench.enlist(1))
    assert isinstance(opened, Open)
    assert (opened.tokens, opened.pages, opened.known) == ((7,) * 40, (), 0)
    assert isinstance(granted, Grant)
    assert isinstance(step, Step)
    assert step.read == 1
    assert bench.told(1) == [Accepted(Seq(1))]


async def test_a_prompt_that_begins_like_one_before_it_is_opened_on_its_pages_and_counted() -> None:
    bench = await started()
    _, granted, step = bench.turn(bench.enlist(1, tokens=200))
    bench.turn(Took(step.n), *(ChunkRead(Seq(1), end, 0.1) for end in (64, 128)))
    bench.turn(Withdraw(Seq(1), "client"))
    opened, more, _ = bench.turn(bench.enlist(2, tokens=140))
    assert (opened.pages, opened.known) == (granted.pages[:2], 128)
    assert not set(more.pages) & set(opened.pages)
    bench.turn(ChunkRead(Seq(2), 140, 0.1), Decoded(1, (Row(Seq(2), 2, "stop"),), 0.0))
    assert bench.told(2)[-1].figures.cached_tokens == 128
    found = {
        name: bench.metrics.registry.get_sample_value(f"vllm:{name}_total", {"model_name": "model", "engine": "0"})
        for name in ("prompt_tokens", "prompt_tokens_cached", "prefix_cache_queries", "prefix_cache_hits")
    }
    read = 128 + 140
    assert list(found.values()) == [read, 128, 200 + 140, 128]


async def test_the_ledger_counts_exactly_what_the_engine_says_it_has() -> None:
    """B17: pages, and room in the arena; what is moved is told to the engine and heard from it."""
    bench = Bench.make()
    bench.turn(evolve(READY, pages=5, slots=7))
    now = bench.dispatcher.statistics()
    assert (now.pages_total, now.pages_free, now.slots_total, now.slots_free) == (5, 5, 7, 7)
    _, _, step = bench.turn(bench.enlist(1, tokens=240, max_tokens=10))
    bench.turn(Took(step.n), *(ChunkRead(Seq(1), end, 0.1) for end in (64, 128)))
    above = bench.enlist(2, tokens=240, max_tokens=10)
    told = bench.turn(Enlist(evolve(above.submit, priority=1), above.reader))
    told = bench.turn(Took(told[-1].n), ChunkRead(Seq(2), 64, 0.1))
    out = next(message for message in told if isinstance(message, SwapOut))
    assert (out.seq, set(out.pages) <= set(range(5))) == (1, True)
    assert bench.dispatcher.statistics().pages_moving == len(out.pages)
    bench.turn(SwappedOut(Seq(1), out.pages, out.slots, 0.1))
    now = bench.dispatcher.statistics()
    assert (now.pages_out, now.pages_moving, now.slots_free) == (len(out.pages), 0, 7 - len(out.pages))


async def test_of_a_batch_all_is_seen_before_one_decision_is_made() -> None:
    """One that comes and leaves in one turn is never opened."""
    bench = await started(1)
    told = bench.turn(bench.enlist(2), Withdraw(Seq(2), "client"), bench.enlist(3), Withdraw(Seq(1), "client"))
    assert kinds(told) == [Close, Open, Grant, Step]
    assert [told[0].seq, told[1].seq, told[3].read] == [1, 3, 3]
    assert kinds(bench.told(2)) == [Accepted, Ended]


async def test_closes_are_told_first_and_the_step_last() -> None:
    """What a close frees can be granted in the same breath."""
    bench = await started(1)
    assert kinds(bench.turn(Withdraw(Seq(1), "client"), bench.enlist(2))) == [Close, Open, Grant, Step]


async def test_an_engine_that_reads_on_another_grid_is_refused_at_the_start() -> None:
    bench = Bench.make()
    with pytest.raises(ConfigError, match=r"^chunk_tokens: .* 128 .* 64"):
        bench.turn(evolve(READY, chunk_tokens=128))
    assert bench.dispatcher.ready is None


@pytest.mark.parametrize(
    ("tokens", "named_max", "kind"), [(90, True, "short"), (90, False, "short"), (91, True, "long")]
)
async def test_a_request_is_counted_as_short_where_the_scheduler_takes_it_for_short(
    tokens: int, named_max: bool, kind: str
) -> None:
    """One that names no max_tokens is taken to write what it may, where that is less than `expect_new_tokens`."""
    bench = await started(short_tokens=100)
    bench.turn(bench.enlist(1, tokens=tokens, named_max=named_max))
    bench.turn(ChunkRead(Seq(1), tokens, 0.1), Decoded(1, (Row(Seq(1), 2, "stop"),), 0.0))
    labels = {"model_name": "model", "engine": "0", "priority": "0", "class": kind}
    assert bench.metrics.registry.get_sample_value("strata_queue_wait_seconds_count", labels) == 1.0


async def test_a_step_like_the_one_in_force_is_not_told_again() -> None:
    bench = await started(1)
    assert bench.turn(Took(1)) == []
    assert bench.turn() == []


async def test_tokens_come_in_order_and_the_end_after_them_once() -> None:
    bench = await started(1)
    bench.turn(ChunkRead(Seq(1), 40, 0.1), Decoded(1, (Row(Seq(1), 5),), 0.0))
    bench.turn(Decoded(1, (Row(Seq(1), 6),), 0.1), Decoded(1, (Row(Seq(1), 2, "stop"),), 0.1))
    accepted, *tokens, ended = bench.told(1)
    assert accepted == Accepted(Seq(1))
    assert [row.token for told in tokens if isinstance(told, Tokens) for row in told.rows] == [5, 6, 2]
    assert isinstance(ended, Ended)
    assert ended.outcome == Completed("stop")
    assert (ended.figures.read_tokens, ended.figures.written_tokens) == (40, 3)
    bench.turn(Withdraw(Seq(1), "client"), Decoded(1, (Row(Seq(1), 9),), 0.1))
    assert bench.told(1) == []


async def test_what_was_drafted_and_accepted_is_counted_and_all_its_tokens_come() -> None:
    bench = await started(1)
    bench.turn(ChunkRead(Seq(1), 40, 0.1), Decoded(1, (Row(Seq(1), 5),), 0.0))
    rows = tuple(Row(Seq(1), token) for token in (6, 7, 8))
    bench.turn(Decoded(1, rows, 0.1, drafted=3, accepted=2), Decoded(1, (Row(Seq(1), 9),), 0.1, drafted=1))
    tokens = [row.token for told in bench.told(1) if isinstance(told, Tokens) for row in told.rows]
    assert tokens == [5, 6, 7, 8, 9]
    names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "generation_tokens")
    labels = {"model_name": "model", "engine": "0"}
    counted = [bench.metrics.registry.get_sample_value(f"vllm:{name}_total", labels) for name in names]
    assert counted == [4, 2, 5]


@pytest.mark.parametrize("withdrawn_first", [True, False])
async def test_a_withdrawal_wins_over_an_end_that_comes_in_the_same_batch(withdrawn_first: bool) -> None:
    """R9: if both happen between two messages, cancel wins; the tokens that came with it are dropped."""
    bench = await started(1)
    bench.turn(ChunkRead(Seq(1), 40, 0.1), Decoded(1, (Row(Seq(1), 5),), 0.0))
    bench.told(1)
    both = [Withdraw(Seq(1), "admin"), Decoded(1, (Row(Seq(1), 2, "stop"),), 0.1)]
    bench.turn(*(both if withdrawn_first else reversed(both)))
    (ended,) = bench.told(1)
    assert isinstance(ended, Ended)
    assert ended.outcome == Cancelled("admin")
    assert ended.figures.written_tokens == 1


async def test_a_withdrawal_by_a_stop_string_is_a_completion() -> None:
    bench = await started(1)
    told = bench.turn(Withdraw(Seq(1), "stop string"))
    assert kinds(told) == [Close, Step]
    assert bench.told(1)[-1].outcome == Completed("stop")


async def test_one_that_can_never_fit_is_refused_and_forgotten() -> None:
    """B11"""
    bench = await started()
    bench.turn(bench.enlist(1, tokens=2000))
    (refused,) = bench.told(1)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, InvalidRequest)
    assert bench.dispatcher.figures(Seq(1)) is None
    assert bench.turn(Withdraw(Seq(1), "client")) == []
    assert bench.told(1) == []


# -- without an engine ------------------------------------------------------------------------------------------------


def died(bench: Bench, fact: Any = DIED) -> Mailbox[Any]:
    """The engine dies, and another is expected: what that one will be told."""
    assert bench.turn(fact) == []
    successor: Mailbox[Any] = Mailbox()
    bench.dispatcher.expect(Ref("engine", successor))
    return successor


@pytest.mark.parametrize(
    ("end", "says"), [(DIED, "the engine died: a bus error"), (Replacing(), "replaced"), (Stopped(), "replaced")]
)
async def test_when_the_engine_is_gone_what_had_started_fails_and_the_queued_wait(end: Any, says: str) -> None:
    """B30: in the turn in which it is heard; the next engine serves who waited, and who came meanwhile."""
    bench = await started(1, 2, max_running=1)
    bench.turn(ChunkRead(Seq(1), 40, 0.1), Decoded(1, (Row(Seq(1), 5),), 0.0))
    successor = died(bench, end)
    failed = bench.told(1)[-1]
    assert isinstance(failed, Ended)
    assert isinstance(failed.outcome, Failed)
    assert isinstance(failed.outcome.error, EngineUnavailable)
    assert says in str(failed.outcome.error)
    assert says in (bench.dispatcher.without or "")
    assert bench.turn(bench.enlist(3)) == []
    assert bench.dispatcher.statistics().pages_held == 0
    assert bench.turn(evolve(READY, incarnation=2)) == []
    assert bench.dispatcher.without is None
    opened, granted, step = take(successor)
    assert (opened.seq, granted.seq, step.read) == (2, 2, 2)
    assert kinds(bench.told(2)) == kinds(bench.told(3)) == [Accepted]


async def test_nothing_of_the_dead_engine_counts_and_nothing_meant_for_it_is_told_to_another() -> None:
    """B32: facts and wishes that cross its death, its successor's start, or both in one turn."""
    bench = await started(1, 2, 3, max_running=1)
    successor = died(bench)
    late = [Took(1), ChunkRead(Seq(1), 40, 0.1), Decoded(1, (Row(Seq(2), 5),), 0.0), Wants(Seq(2))]
    assert bench.turn(*late, Withdraw(Seq(1), "client"), Withdraw(Seq(2), "client")) == []
    assert take(successor) == []
    assert bench.turn(evolve(READY, incarnation=2), DIED) == []
    assert take(successor) == []
    third: Mailbox[Any] = Mailbox()
    bench.dispatcher.expect(Ref("engine", third))
    bench.turn(evolve(READY, incarnation=3))
    assert [message.seq for message in take(third)[:2]] == [3, 3]
    assert bench.told(2)[-1].outcome == Cancelled("client")
    assert bench.turn() == take(successor) == []


async def test_a_successor_with_less_memory_refuses_by_name_who_can_never_fit() -> None:
    """The ledger is what its own Ready says, for those that wait and for those that come."""
    bench = await started(1, 2, 3, max_running=1)
    bench.turn(bench.enlist(4, tokens=500, max_tokens=100), bench.enlist(5, tokens=250, max_tokens=50))
    successor = died(bench)
    bench.turn(evolve(READY, incarnation=2, pages=6, context=300))
    errors = [bench.told(4)[-1].outcome.error, None]
    assert isinstance(errors[0], PromptTooLong)
    assert (errors[0].tokens, errors[0].limit) == (600, 300)
    assert [message.seq for message in take(successor) if isinstance(message, Open)] == [2]
    now = bench.dispatcher.statistics()
    assert (now.pages_total, now.queued) == (6, 2)
    bench.turn(bench.enlist(6, tokens=290, max_tokens=11), DIED)
    assert isinstance(bench.told(6)[0].error, PromptTooLong)
    bench.dispatcher.expect(Ref("engine", successor))
    bench.turn(evolve(READY, incarnation=3, pages=4))
    error = bench.told(5)[-1].outcome.error
    assert isinstance(error, PromptTooLong)
    assert (error.tokens, error.limit) == (300, 256)
    assert kinds(bench.told(3)) == [Accepted]


async def test_when_there_will_be_no_engine_all_end_and_nobody_is_let_in() -> None:
    """B36: also who was queued, and who comes later."""
    bench = await started(1, 2, max_running=1)
    died(bench)
    assert bench.turn(NoEngine(EngineUnavailable("it died too often"))) == []
    for seq, says in ((1, "a bus error"), (2, "too often")):
        ended = bench.told(seq)[-1]
        assert isinstance(ended, Ended)
        assert isinstance(ended.outcome, Failed)
        assert says in str(ended.outcome.error)
    bench.turn(bench.enlist(3))
    (refused,) = bench.told(3)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, EngineUnavailable)


async def test_draining_ends_the_queued_and_refuses_the_new() -> None:
    bench = await started(1, 2, max_running=1)
    bench.turn(Drain(), bench.enlist(3))
    assert kinds(bench.told(1)) == [Accepted]
    assert bench.told(2)[-1].outcome == Cancelled("shutdown")
    assert kinds(bench.told(3)) == [Accepted, Ended]
    bench.turn(bench.enlist(4))
    assert isinstance(bench.told(4)[0].error, ShuttingDown)


async def test_before_the_engine_is_ready_a_request_is_refused() -> None:
    bench = Bench.make()
    assert bench.turn(Took(1), bench.enlist(1)) == []
    assert isinstance(bench.told(1)[0].error, EngineUnavailable)


async def test_the_last_thousand_that_ended_are_kept() -> None:
    """Figures and history, no word of what they said."""
    bench = await started()
    for seq in range(1, KEPT + 11):
        bench.turn(bench.enlist(seq), Withdraw(Seq(seq), "client"))
    assert len(bench.dispatcher.past) == KEPT
    assert next(iter(bench.dispatcher.past)) == 11
    past = bench.dispatcher.past[Seq(11)]
    assert past.outcome == Cancelled("client")
    assert bench.dispatcher.figures(Seq(11)) == past.figures
    assert [str(change.state) for change in bench.dispatcher.changes(Seq(11))] == ["queued", "done"]
    assert bench.dispatcher.figures(Seq(10)) is None
    assert bench.dispatcher.changes(Seq(10)) == ()


class Counting(Dispatcher):
    """Counts its turns."""

    turns = 0

    def turn(self, batch: Iterable[Any], now: float) -> None:
        self.turns += 1
        super().turn(batch, now)


async def test_who_waits_too_long_is_told_so_also_while_there_is_no_engine(autojump_clock: MockClock) -> None:
    """And then time alone wakes the dispatcher no more."""
    bench = Bench.make(max_wait_s=5)
    first, queued = bench.enlist(1, tokens=600, max_tokens=100), bench.enlist(2, tokens=600, max_tokens=100)
    dispatcher = Counting(SchedulerSettings(chunk_tokens=64, max_wait_s=5), Metrics("model"))
    dispatcher.expect(Ref("engine", Mailbox()))
    async with open_supervisor(Registry()) as actors:
        dispatcher.ref.tell(READY)
        await actors.start(dispatcher, on_failure="escalate")
        for message in (first, queued, DIED):
            dispatcher.ref.tell(message)
            await trio.sleep(1)
        assert kinds(bench.told(2)) == [Accepted]
        await trio.sleep(3)
        (ended,) = bench.told(2)
        assert isinstance(ended, Ended)
        assert isinstance(ended.outcome, Failed)
        assert isinstance(ended.outcome.error, WaitedTooLong)
        before = dispatcher.turns
        autojump_clock.jump(60)
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        assert dispatcher.turns == before
