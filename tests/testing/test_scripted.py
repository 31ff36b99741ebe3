"""The scripted engine: what can be told to it, what goes wrong on demand, and what it refuses to be told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from strata.messages import (
    ChatMessage,
    ChunkRead,
    Close,
    Closed,
    Decoded,
    EngineDied,
    FromEngine,
    Grant,
    Open,
    Progress,
    Ready,
    Row,
    Sampling,
    Seq,
    SeqFailed,
    Step,
    Stop,
    Stopped,
    SwapIn,
    SwapOut,
    SwappedIn,
    SwappedOut,
    Took,
    Wants,
)
from strata.testing import ByteTokenizer, Fault, PlainTemplate, ProtocolError, Ran, RowFault, Script, ScriptedEngine
from strata.testing.language import END

PROMPT = tuple(b"say ping")
GREEDY = Sampling(temperature=0.0, max_tokens=5)


class Desk:
    """A scripted engine that runs, and what it said."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.facts: list[FromEngine] = []
        self.heard_at: list[float] = []
        self.returned = trio.Event()

    def hear(self, fact: FromEngine) -> None:
        self.facts.append(fact)
        self.heard_at.append(trio.current_time())

    async def run(self, *, task_status: trio.TaskStatus[Ready]) -> None:
        await self.engine.run(self.hear, task_status=task_status)
        self.returned.set()

    def open(self, seq: int, tokens: tuple[int, ...] = PROMPT, sampling: Sampling = GREEDY, *, pages: int = 8) -> None:
        """Opened and granted `pages` pages of its own."""
        self.engine.tell(Open(Seq(seq), tokens, sampling))
        self.engine.tell(Grant(Seq(seq), tuple(range(seq * 8, seq * 8 + pages))))

    def tokens(self, seq: int) -> list[int]:
        return [row.token for row in self.rows(seq)]

    def rows(self, seq: int) -> list[Row]:
        return [row for fact in self.facts if isinstance(fact, Decoded) for row in fact.rows if row.seq == seq]

    def text(self, seq: int) -> str:
        return ByteTokenizer().decode(self.tokens(seq))

    def said(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]


@asynccontextmanager
async def running(**named: Any) -> AsyncIterator[Desk]:
    named = {
        "page_tokens": 16,
        "chunk_tokens": 64,
        "slice_s": 1,
        "step_s": 1,
        "slices_per_chunk": 4,
        "slots": 8,
        **named,
    }
    desk = Desk(ScriptedEngine(**named))
    async with trio.open_nursery() as nursery:
        await nursery.start(desk.run)
        yield desk
        nursery.cancel_scope.cancel()


async def answer(seq: int = 1, tokens: tuple[int, ...] = PROMPT, sampling: Sampling = GREEDY, **named: Any) -> Desk:
    async with running(**named) as desk:
        desk.open(seq, tokens, sampling)
        desk.engine.tell(Step(1, read=Seq(seq)))
        await trio.sleep(1000)
    return desk


# -- what it answers --------------------------------------------------------------------------------------------------


async def test_an_answer_by_text_is_whole_and_ends_with_an_end_token(autojump_clock: MockClock) -> None:
    desk = await answer(script=Script(by_text={"pong": "no", "ping": "pong"}), sampling=Sampling(max_tokens=50))
    assert desk.text(1) == "pong"
    assert [row.ended for row in desk.rows(1)] == [None] * 4 + ["stop"]
    assert desk.tokens(1)[-1] == END


async def test_an_answer_by_number_is_those_tokens(autojump_clock: MockClock) -> None:
    desk = await answer(3, script=Script(by_seq={3: (7, 8)}, by_text={"ping": "pong"}))
    assert desk.tokens(3) == [7, 8, END]


async def test_an_answer_is_cut_at_max_tokens(autojump_clock: MockClock) -> None:
    desk = await answer(script=Script(by_seq={1: (7, 8, 9)}), sampling=Sampling(max_tokens=2))
    assert [(row.token, row.ended) for row in desk.rows(1)] == [(7, None), (8, "length")]


async def test_an_answer_is_cut_where_the_context_ends(autojump_clock: MockClock) -> None:
    desk = await answer(context=len(PROMPT) + 3, sampling=Sampling(max_tokens=50))
    assert [row.ended for row in desk.rows(1)] == [None, None, "length"]


async def test_no_end_token_comes_before_min_tokens(autojump_clock: MockClock) -> None:
    desk = await answer(script=Script(by_seq={1: (7,)}), sampling=Sampling(max_tokens=9, min_tokens=4))
    assert len(desk.tokens(1)) == 5
    assert desk.tokens(1).index(END) == 4


async def test_an_end_token_that_is_to_be_ignored_ends_nothing(autojump_clock: MockClock) -> None:
    desk = await answer(script=Script(by_seq={1: (7,)}), sampling=Sampling(max_tokens=4, ignore_eos=True))
    assert desk.tokens(1) == [7, END, END, END]
    assert desk.rows(1)[-1].ended == "length"


async def test_without_a_script_the_answer_is_decided_by_the_prompt_and_by_the_seed_where_it_is_sampled(
    autojump_clock: MockClock,
) -> None:
    """B54: the same seed gives the same text."""
    sampled = Sampling(temperature=1.0, seed=1, max_tokens=20)
    other_seed = Sampling(temperature=1.0, seed=2, max_tokens=20)
    greedy = [Sampling(temperature=0.0, seed=seed, max_tokens=20) for seed in (1, 2)]
    texts = [(await answer(sampling=sampling)).text(1) for sampling in (sampled, sampled, other_seed, *greedy)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[3] == texts[4]
    assert (await answer(tokens=tuple(b"another prompt"), sampling=greedy[0])).text(1) != texts[3]


async def test_a_function_can_answer_everybody(autojump_clock: MockClock) -> None:
    desk = await answer(script=Script(otherwise=lambda opened, index: opened.tokens[index]))
    assert tuple(desk.tokens(1)) == PROMPT[:5]


async def test_log_probabilities_come_when_they_are_asked_for(autojump_clock: MockClock) -> None:
    with_them = await answer(sampling=Sampling(max_tokens=2, logprobs=3))
    without = await answer()
    assert all(len(row.top) == 3 and row.top[0].token == row.token for row in with_them.rows(1))
    assert all(row.logprob == row.top[0].logprob for row in with_them.rows(1))
    assert all(row.logprob is None and row.top == () for row in without.rows(1))


# -- what it costs ----------------------------------------------------------------------------------------------------


async def test_slices_and_steps_take_their_time_and_are_logged(autojump_clock: MockClock) -> None:
    desk = await answer(tokens=tuple(range(100)), sampling=Sampling(max_tokens=2), slice_s=2, step_s=3, row_s=0.5)
    slices = [Ran("slice", (Seq(1),), 1, 2.0 * n, 2.0) for n in range(7)]
    assert desk.engine.log == [*slices, Ran("step", (Seq(1),), 1, 14.0, 3.5)]
    assert (desk.engine.ran("slice"), desk.engine.ran("step"), desk.engine.ran("step", 2)) == (7, 1, 0)
    assert desk.said(ChunkRead) == [ChunkRead(Seq(1), 64, 2.0), ChunkRead(Seq(1), 100, 2.0)]
    assert [(fact.chunk, fact.done, fact.total) for fact in desk.said(Progress)] == [
        (0, 1, 4),
        (0, 2, 4),
        (0, 3, 4),
        (1, 1, 3),
        (1, 2, 3),
    ]


@pytest.mark.parametrize(("gap_s", "slices"), [(0.0, 1), (3.0, 3)])
async def test_reading_beside_decoding_has_its_share_and_no_more(
    gap_s: float, slices: int, autojump_clock: MockClock
) -> None:
    """B13: with a share of a half a slice for each step, or as many as the gap allows (R4)."""
    async with running() as desk:
        desk.open(1, sampling=Sampling(max_tokens=40))
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(5.5)
        desk.open(2, tokens=tuple(range(128)))
        desk.engine.tell(Step(2, decode=(Seq(1),), read=Seq(2), read_share=0.5, gap_s=gap_s))
        await trio.sleep(10)
    kinds = [ran.kind for ran in desk.engine.log if ran.n == 2]
    after_a_step = kinds[kinds.index("step") + 1 :]
    assert after_a_step[: slices + 2] == ["slice"] * slices + ["step", "slice"]


async def test_what_is_told_is_heard_at_the_end_of_the_slice_that_is_under_way(autojump_clock: MockClock) -> None:
    async with running() as desk:
        desk.open(1, tokens=tuple(range(64)))
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(1.5)
        desk.engine.tell(Step(2))
        await trio.sleep(10)
    assert desk.heard_at[desk.facts.index(Took(2))] == 2
    assert desk.engine.ran("slice") == 2


async def test_what_is_told_in_answer_to_a_fact_comes_one_slice_later(autojump_clock: MockClock) -> None:
    desk = Desk(ScriptedEngine(chunk_tokens=64, slice_s=1, slices_per_chunk=4))

    def hear(fact: FromEngine) -> None:
        desk.hear(fact)
        if isinstance(fact, Progress) and fact.done == 1:
            nursery.start_soon(park)

    async def park() -> None:
        desk.engine.tell(Step(2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.engine.run, hear)
        desk.open(1, tokens=tuple(range(64)))
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(10)
        desk.engine.tell(Stop())
    assert desk.heard_at[desk.facts.index(Took(2))] == 2


async def test_reading_stands_at_the_position_it_was_told(autojump_clock: MockClock) -> None:
    async with running() as desk:
        desk.open(1, tokens=tuple(range(128)))
        desk.engine.tell(Step(1, read=Seq(1), read_until=64))
        await trio.sleep(100)
        assert desk.engine.ran("slice") == 4
        desk.engine.tell(Step(2, read=Seq(1)))
        await trio.sleep(100)
        assert desk.engine.ran("slice") == 8


async def test_chunks_end_on_the_grid_whatever_is_known(autojump_clock: MockClock) -> None:
    async with running() as desk:
        desk.open(1, tokens=tuple(range(64)), pages=4)
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(100)
        desk.engine.tell(Open(Seq(2), tuple(range(100)), GREEDY, pages=(8, 9), known=32))
        desk.engine.tell(Grant(Seq(2), tuple(range(40, 48))))
        desk.engine.tell(Step(2, read=Seq(2)))
        await trio.sleep(100)
    assert [fact.position for fact in desk.said(ChunkRead) if fact.seq == Seq(2)] == [64, 100]
    assert desk.rows(2)[-1].ended == "length"


async def test_a_want_is_said_once_for_each_grant_that_is_too_small(autojump_clock: MockClock) -> None:
    async with running() as desk:
        desk.open(1, tokens=tuple(range(64)), pages=1)
        desk.engine.tell(Step(1, read=Seq(1)))
        for page in (40, 41):
            await trio.sleep(10)
            desk.engine.tell(Grant(Seq(1), (page,)))
        await trio.sleep(10)
        assert desk.said(Wants) == [Wants(Seq(1))] * 3
        desk.engine.tell(Grant(Seq(1), (42,)))
        await trio.sleep(10)
    assert desk.said(ChunkRead) == [ChunkRead(Seq(1), 64, 1.0)]


async def test_a_reader_without_a_workspace_waits_for_the_chunk_that_was_parked_last(autojump_clock: MockClock) -> None:
    """The step that names it is taken when that chunk is done, and no more than `workspaces` are ever half read."""
    async with running(workspaces=2) as desk:
        for seq in (1, 2, 3):
            desk.open(seq, tokens=tuple(range(128)))
            desk.engine.tell(Step(seq, read=Seq(seq)))
            await trio.sleep(1.5 if seq == 1 else 1)
            assert desk.engine.half_read <= 2
        await trio.sleep(10)
    assert desk.facts.index(ChunkRead(Seq(2), 64, 1.0)) + 1 == desk.facts.index(Took(3))
    assert [ran.seqs[0] for ran in desk.engine.log[:7]] == [1, 1, 2, 2, 2, 2, 3]


async def test_closing_a_half_read_sequence_sets_its_workspace_free(autojump_clock: MockClock) -> None:
    async with running(workspaces=1) as desk:
        desk.open(1, tokens=tuple(range(128)))
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(1.5)
        assert desk.engine.half_read == 1
        desk.engine.tell(Close(Seq(1)))
        await trio.sleep(1)
        assert (desk.engine.half_read, desk.engine.held_pages, desk.engine.open_sequences) == (0, 0, 0)
        assert desk.said(Closed) == [Closed(Seq(1))]


async def test_an_engine_can_take_its_time_to_start(autojump_clock: MockClock) -> None:
    async with running(start_s=7, incarnation=3, pages=5) as desk:
        assert trio.current_time() == 7
    async with trio.open_nursery() as nursery:
        ready = await nursery.start(ScriptedEngine(incarnation=3, pages=5, page_tokens=16).run, desk.hear)
        nursery.cancel_scope.cancel()
    assert (ready.incarnation, ready.pages, ready.context) == (3, 5, 80)


# -- what goes wrong --------------------------------------------------------------------------------------------------


async def test_a_row_fault_fails_its_sequence_alone(autojump_clock: MockClock) -> None:
    """B33: the other row of the same step is published, and the failed one is closed."""
    async with running(faults=[RowFault(seq=1, index=2, error="overflow")]) as desk:
        desk.open(1)
        desk.open(2)
        desk.engine.tell(Step(1, read=Seq(1), read_until=None))
        await trio.sleep(1.5)
        desk.engine.tell(Step(2, decode=(Seq(1),), read=Seq(2), gap_s=9))
        await trio.sleep(100)
    assert desk.said(SeqFailed) == [SeqFailed(Seq(1), "overflow")]
    assert len(desk.tokens(1)) == 2
    assert desk.rows(2)[-1].ended == "length"
    assert (desk.engine.held_pages, desk.engine.open_sequences) == (0, 0)


async def test_a_first_token_can_fail_too(autojump_clock: MockClock) -> None:
    desk = await answer(faults=[RowFault(seq=1)])
    assert [type(fact) for fact in desk.facts] == [Took, ChunkRead, SeqFailed]


@pytest.mark.parametrize("named", [{"slice": 2}, {"step": 2}])
async def test_an_engine_dies_at_the_slice_or_step_it_was_told(named: Any, autojump_clock: MockClock) -> None:
    desk = await answer(tokens=tuple(range(64)), faults=[Fault(reason="signal 9", **named)])
    assert desk.facts[-1] == EngineDied("signal 9", 1)
    assert desk.returned.is_set()
    ((kind, nth),) = named.items()
    assert desk.engine.ran(kind) == nth - 1


async def test_an_engine_that_vanishes_returns_without_a_word(autojump_clock: MockClock) -> None:
    desk = await answer(faults=[Fault(does="vanish", step=1)])
    assert desk.returned.is_set()
    assert not desk.said(EngineDied)
    assert not desk.said(Stopped)


async def test_an_engine_that_hangs_says_nothing_more_and_can_be_cancelled(autojump_clock: MockClock) -> None:
    async with running(faults=[Fault(does="hang", step=1)]) as desk:
        desk.open(1)
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(100)
        desk.engine.tell(Stop())
        await trio.sleep(100)
        assert not desk.returned.is_set()
    assert desk.said(Stopped) == []


async def test_an_exception_comes_out_of_its_host() -> None:
    with pytest.RaisesGroup(RuntimeError):
        await answer(faults=[Fault(does="raise", slice=1)])


async def test_a_fault_at_once_reaches_an_idle_engine_too(autojump_clock: MockClock) -> None:
    async with running() as desk:
        await trio.sleep(5)
        desk.engine.fail(Fault(reason="now"))
        await trio.sleep(0.5)
        assert desk.facts == [EngineDied("now")]


# -- what it may not be told ------------------------------------------------------------------------------------------

OPENED = (Open(Seq(1), PROMPT, GREEDY), Grant(Seq(1), (0, 1)))
LONG = tuple(range(100))
READ = (Open(Seq(1), LONG, GREEDY), Grant(Seq(1), tuple(range(8))), Step(1, read=Seq(1), read_until=64))
WRONG = {
    "opened twice": (*OPENED, Open(Seq(1), PROMPT, GREEDY)),
    "opened again after its close": (*OPENED, Close(Seq(1)), Open(Seq(1), PROMPT, GREEDY)),
    "a page twice": (*OPENED, Grant(Seq(1), (2, 1))),
    "a page of another": (*OPENED, Open(Seq(2), PROMPT, GREEDY), Grant(Seq(2), (0,))),
    "the same page twice in one grant": (*OPENED, Grant(Seq(1), (3, 3))),
    "a page beyond the last": (*OPENED, Grant(Seq(1), (64,))),
    "a page before the first": (*OPENED, Grant(Seq(1), (-1,))),
    "a page in its open that another holds": (*OPENED, Open(Seq(2), PROMPT, GREEDY, (0,))),
    "known pages that were never read": (Open(Seq(1), LONG, GREEDY, (0,), 16),),
    "known pages that are still being read": (*READ, Open(Seq(2), LONG, GREEDY, (0, 1, 2, 3, 4), 80)),
    "known pages with other tokens": (*READ, Open(Seq(2), (9, *LONG[1:]), GREEDY, (0,), 16)),
    "known pages in another order": (*READ, Open(Seq(2), LONG, GREEDY, (1, 0), 32)),
    "known pages that another was granted since": (
        *READ,
        Close(Seq(1)),
        Open(Seq(2), PROMPT, GREEDY),
        Grant(Seq(2), (0,)),
        Open(Seq(3), LONG, GREEDY, (0,), 16),
    ),
    "a known page twice": (*READ, Open(Seq(2), LONG * 2, GREEDY, (0, 0), 32)),
    "a granted page that another knows": (
        *READ,
        Open(Seq(2), LONG, GREEDY, (0,), 16),
        Close(Seq(1)),
        Open(Seq(3), PROMPT, GREEDY),
        Grant(Seq(3), (0,)),
    ),
    "a page to a slot that there is not": (*OPENED, SwapOut(Seq(1), (0,), (8,))),
    "a page to a slot in use": (*OPENED, SwapOut(Seq(1), (0,), (3,)), SwapOut(Seq(1), (1,), (3,))),
    "a page that is not its own": (*OPENED, SwapOut(Seq(1), (2,), (0,))),
    "a page that is being moved": (*OPENED, SwapOut(Seq(1), (0, 0), (0, 1))),
    "a page that another knows": (*READ, Open(Seq(2), LONG, GREEDY, (0,), 16), SwapOut(Seq(1), (0,), (0,))),
    "a slot that is not its own": (*OPENED, SwapIn(Seq(1), (0,), (5,))),
    "a slot to a page in use": (*OPENED, SwapOut(Seq(1), (0,), (0,)), SwapIn(Seq(1), (0,), (1,))),
    "fewer slots than pages": (*OPENED, SwapOut(Seq(1), (0, 1), (0,))),
    "known pages in a page that is free": (
        *READ,
        SwapOut(Seq(1), (0,), (0,)),
        Open(Seq(2), PROMPT, GREEDY),
        Grant(Seq(2), (0,)),
        Open(Seq(3), LONG, GREEDY, (0,), 16),
    ),
    "a move of a stranger": (SwapOut(Seq(9), (0,), (0,)),),
    "a known end inside a page": (*READ, Open(Seq(2), LONG, GREEDY, (0, 1), 30)),
    "pages for a stranger": (Grant(Seq(9), (0,)),),
    "a stranger that reads": (Step(1, read=Seq(9)),),
    "a stranger that decodes": (Step(1, decode=(Seq(9),)),),
    "an empty prompt": (Open(Seq(1), (), GREEDY),),
    "a prompt as long as the context": (Open(Seq(1), (0,) * 1024, GREEDY),),
    "more known than its pages hold": (Open(Seq(1), PROMPT, GREEDY, (), 4),),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_no_right_dispatcher_says_is_an_error(wrong: str, autojump_clock: MockClock) -> None:
    with pytest.RaisesGroup(ProtocolError):
        async with running() as desk:
            for message in WRONG[wrong]:
                desk.engine.tell(message)
                await trio.sleep(10)


async def test_messages_that_cross_the_end_of_their_sequence_are_no_error(autojump_clock: MockClock) -> None:
    async with running() as desk:
        desk.open(1)
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(100)
        assert desk.rows(1)[-1].ended
        for message in (Grant(Seq(1), (40,)), Step(2, decode=(Seq(1),)), Close(Seq(1))):
            desk.engine.tell(message)
        desk.engine.tell(Stop())
        await desk.returned.wait()
    assert desk.engine.held_pages == 0


async def test_pages_can_be_granted_again_once_their_holder_is_closed(autojump_clock: MockClock) -> None:
    async with running() as desk:
        desk.engine.tell(Open(Seq(1), PROMPT, GREEDY))
        desk.engine.tell(Grant(Seq(1), (0,)))
        desk.engine.tell(Close(Seq(1)))
        desk.engine.tell(Open(Seq(2), PROMPT, GREEDY))
        desk.engine.tell(Grant(Seq(2), (0,)))
        await trio.sleep(1)
        assert desk.engine.held_pages == 1
        assert desk.engine.half_read == 0


async def test_a_page_takes_its_time_to_move_and_what_it_holds_goes_with_it(autojump_clock: MockClock) -> None:
    async with running(page_s=0.5) as desk:
        for message in READ:
            desk.engine.tell(message)
        await trio.sleep(10)
        desk.engine.tell(SwapOut(Seq(1), (0, 1), (5, 6)))
        await trio.sleep(0.75)
        assert (desk.engine.held_pages, desk.engine.held_slots, desk.engine.ran("page")) == (8, 2, 1)
        await trio.sleep(1)
        assert desk.facts[-1] == SwappedOut(Seq(1), (0, 1), (5, 6), 1.0)
        assert (desk.engine.held_pages, desk.engine.held_slots) == (6, 2)
        desk.engine.tell(SwapIn(Seq(1), (6, 5), (40, 41)))
        await trio.sleep(2)
        assert desk.facts[-1] == SwappedIn(Seq(1), (6, 5), (40, 41), 1.0)
        desk.engine.tell(Open(Seq(2), LONG, GREEDY, (41, 40), 32))
        await trio.sleep(1)
        assert (desk.engine.held_pages, desk.engine.held_slots) == (8, 0)


async def test_a_step_comes_between_two_pages(autojump_clock: MockClock) -> None:
    async with running(page_s=1) as desk:
        desk.open(1)
        desk.engine.tell(SwapOut(Seq(1), (8, 9, 10), (0, 1, 2)))
        await trio.sleep(1.5)
        desk.engine.tell(Step(1, read=Seq(1)))
        await trio.sleep(1)
        assert desk.facts == [Took(1)]
        await trio.sleep(10)
        assert isinstance(desk.facts[-1], SwappedOut)
        assert desk.engine.ran("slice") == 0


# -- what ships with it -----------------------------------------------------------------------------------------------


def test_a_byte_is_a_token_and_the_end_is_none() -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode("Grüße, 世界 🌍")
    assert b"".join(tokenizer.token_bytes(token) for token in tokens).decode() == "Grüße, 世界 🌍"
    assert max(tokens) < 256
    assert (tokenizer.token_bytes(END), tokenizer.eos_ids, tokenizer.vocab_size) == (b"", {END}, 257)
    assert tokenizer.token_text(tokens[2]) == "\N{REPLACEMENT CHARACTER}"
    with pytest.raises(ValueError):
        tokenizer.token_bytes(257)


def test_a_plain_template_gives_each_message_a_line() -> None:
    messages = [ChatMessage("system", "be brief"), ChatMessage("user", "hi")]
    template = PlainTemplate()
    assert template.render(messages) == "system: be brief\nuser: hi\nassistant: "
    assert template.render(messages, add_generation_prompt=False) == "system: be brief\nuser: hi\n"


def test_the_scripted_engine_needs_neither_a_models_library_nor_arrays() -> None:
    code = "import sys, strata.testing; print([m for m in ('gguf', 'numpy', 'tokenizers') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
