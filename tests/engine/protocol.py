"""What every engine behind `EngineHost` must do, as plain functions over a factory of hosts.

A room of its own because the same sentences hold for a thread, a child process and a script.  Knows the messages and
the face of a host, and nothing of what is behind it: no model, no clock, no thread.  Nothing here depends on how fast
an engine is: what must stand still is made to stand by its pages or by `read_until`.

The engine must have pages for four sequences of `longest(ready)` tokens each, an arena for one, and a context of as
many tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from strata.engine.host import EngineHost
from strata.messages import (
    PROTOCOL,
    ChunkRead,
    Close,
    Closed,
    Decoded,
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
    ToEngine,
    Took,
    Wants,
)

MakeHost = Callable[[], EngineHost]

ANSWER = 12
"""Tokens of an answer, unless a test says otherwise."""
PATIENCE_S = 60
"""Longer than this is for ever."""


def longest(ready: Ready) -> int:
    """The longest sequence that is used here (tokens)."""
    return 3 * ready.chunk_tokens + 4 * ready.page_tokens + ANSWER


class Session:
    """A host that runs, and all that it has said."""

    def __init__(self, host: EngineHost) -> None:
        self.host = host
        self.ready: Ready
        self.facts: list[FromEngine] = []
        self.ended = trio.Event()
        self._news = trio.Event()
        self._step = 0
        self._next_page = 0

    # -- saying -----------------------------------------------------------------------------------------------------

    def hear(self, fact: FromEngine) -> None:
        self.facts.append(fact)
        self._news.set()
        self._news = trio.Event()

    def tell(self, *messages: ToEngine) -> None:
        for message in messages:
            self.host.tell(message)

    def step(self, *decode: Seq, read: Seq | None = None, read_until: int | None = None) -> int:
        """Tells the next step; its number."""
        self._step += 1
        self.tell(Step(self._step, decode, read, read_until))
        return self._step

    def open(
        self,
        seq: Seq,
        *,
        prompt: int | None = None,
        answer: int = ANSWER,
        hold: int | None = None,
        cached: tuple[int, ...] = (),
        written: Iterable[int] = (),
    ) -> int:
        """A greedy sequence of `prompt` tokens with pages for `hold` tokens (None: for all); the prompt's length.

        Numbers that differ by 23 have equal prompts; `cached` pages hold the beginning of it.
        """
        length = 2 * self.ready.chunk_tokens + self.ready.chunk_tokens // 2 if prompt is None else prompt
        tokens = tuple(3 + (seq * 5 + i * 7) % 23 for i in range(length))
        known = len(cached) * self.ready.page_tokens
        sampling = Sampling(temperature=0.0, max_tokens=answer, ignore_eos=True)
        self.tell(Open(seq, tokens, sampling, cached, known, tuple(written)))
        self.grant(seq, length + answer - known if hold is None else hold)
        return length

    def grant(self, seq: Seq, tokens: int) -> tuple[int, ...]:
        """Grants fresh pages for so many tokens."""
        pages = self.fresh(-(-tokens // self.ready.page_tokens))
        self.tell(Grant(seq, pages))
        return pages

    def fresh(self, count: int) -> tuple[int, ...]:
        """Pages that nobody had before."""
        pages = tuple(range(self._next_page, self._next_page + count))
        self._next_page += count
        assert self._next_page <= self.ready.pages, "the engine under test has too few pages for these tests"
        return pages

    # -- hearing ----------------------------------------------------------------------------------------------------

    async def until(self, *facts: FromEngine) -> None:
        """Until these have been said."""
        await self._until(lambda: all(fact in self.facts for fact in facts), f"{facts}")

    async def until_ended(self, *seqs: Seq) -> None:
        """Until each of these has written its last token."""
        await self._until(lambda: all(any(row.ended for row in self.rows(seq)) for seq in seqs), f"the end of {seqs}")

    async def until_written(self, seq: Seq, count: int) -> None:
        await self._until(lambda: len(self.rows(seq)) >= count, f"{count} tokens of {seq}")

    async def until_read(self, seq: Seq, position: int) -> None:
        await self._until(lambda: position in self.read(seq), f"{seq} read to {position}")

    async def until_swapped(self, asked: SwapOut | SwapIn) -> None:
        """Until this, too, is done."""
        done = SwappedOut if isinstance(asked, SwapOut) else SwappedIn
        wanted = (asked.seq, asked.pages, asked.slots)
        before = self._swapped(done, wanted)
        await self._until(lambda: self._swapped(done, wanted) > before, f"{asked}")

    def _swapped(self, done: type, wanted: tuple[object, ...]) -> int:
        return sum(isinstance(fact, done) and (fact.seq, fact.pages, fact.slots) == wanted for fact in self.facts)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        with trio.move_on_after(PATIENCE_S):
            while not holds():
                await self._news.wait()
            return
        raise AssertionError(f"waited in vain for {what}; the engine said {self.facts}")

    def rows(self, seq: Seq) -> list[Row]:
        return [row for fact in self.facts if isinstance(fact, Decoded) for row in fact.rows if row.seq == seq]

    def read(self, seq: Seq) -> list[int]:
        """The ends of its chunks, as they were said."""
        return [fact.position for fact in self.facts if isinstance(fact, ChunkRead) and fact.seq == seq]

    def tokens(self, seq: Seq) -> list[int]:
        return [row.token for row in self.rows(seq)]

    def about(self, seq: Seq, *, after: FromEngine | None = None) -> list[FromEngine]:
        """What was said of a sequence, after some fact."""
        start = 0 if after is None else self.facts.index(after) + 1
        return [fact for fact in self.facts[start:] if concerns(fact, seq)]


def concerns(fact: FromEngine, seq: Seq) -> bool:
    if isinstance(fact, Decoded):
        return any(row.seq == seq for row in fact.rows)
    return (
        isinstance(fact, Progress | ChunkRead | Wants | SwappedOut | SwappedIn | SeqFailed | Closed) and fact.seq == seq
    )


@asynccontextmanager
async def running(make: MakeHost) -> AsyncIterator[Session]:
    """A host from its start to its `Stopped`."""
    session = Session(make())

    async def run(*, task_status: trio.TaskStatus[Ready]) -> None:
        await session.host.run(session.hear, task_status=task_status)
        session.ended.set()

    async with trio.open_nursery() as nursery:
        session.ready = await nursery.start(run)
        assert session.ready.pages * session.ready.page_tokens >= 4 * longest(session.ready)
        assert session.ready.slots * session.ready.page_tokens >= longest(session.ready)
        assert session.ready.context >= longest(session.ready)
        yield session
        session.tell(Stop())


_ALONE: dict[object, list[int]] = {}
"""What was found once: a host that is a process takes its time to start."""


async def undisturbed(make: MakeHost, seq: Seq, **named: int) -> list[int]:
    """The tokens of a sequence that is alone in an engine of its own; equal engines give equal tokens."""
    what = (make, seq, *sorted(named.items()))
    if what not in _ALONE:
        _ALONE[what] = await alone_in_a_new_engine(make, seq, **named)
    return _ALONE[what]


async def alone_in_a_new_engine(make: MakeHost, seq: Seq, **named: int) -> list[int]:
    async with running(make) as session:
        session.open(seq, **named)
        session.step(read=seq)
        await session.until_ended(seq)
    return session.tokens(seq)


# -- a single request -----------------------------------------------------------------------------------------------


async def an_engine_says_what_it_has(make: MakeHost) -> None:
    async with running(make) as session:
        ready = session.ready
    assert ready.protocol == PROTOCOL
    assert min(ready.pages, ready.page_tokens, ready.context, ready.workspaces, ready.chunk_tokens) >= 1
    assert not any(isinstance(fact, Ready) for fact in session.facts), "Ready is the start, not a fact to deliver"


async def a_request_is_read_chunk_by_chunk_and_answered(make: MakeHost) -> None:
    async with running(make) as session:
        length = session.open(Seq(1))
        n = session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    chunk = session.ready.chunk_tokens
    assert session.facts[0] == Took(n)
    read = session.read(Seq(1))
    assert read == [*range(chunk, length, chunk), length]
    assert all(
        fact.seq == Seq(1) and 0 < fact.done < fact.total and 0 <= fact.chunk < len(read)
        for fact in session.facts
        if isinstance(fact, Progress)
    )
    steps = [fact for fact in session.facts if isinstance(fact, Decoded)]
    assert [fact.n for fact in steps] == [n] * ANSWER
    assert steps[0].seconds == 0, "the first token's time is its chunk's"
    assert [row.ended for row in session.rows(Seq(1))] == [None] * (ANSWER - 1) + ["length"]


async def a_first_token_follows_its_last_chunk_at_once(make: MakeHost) -> None:
    async with running(make) as session:
        length = session.open(Seq(1), answer=1)
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    last = next(i for i, fact in enumerate(session.facts) if isinstance(fact, ChunkRead) and fact.position == length)
    assert isinstance(session.facts[last + 1], Decoded)
    assert [row.ended for row in session.rows(Seq(1))] == ["length"]


async def equal_engines_give_equal_tokens(make: MakeHost) -> None:
    assert await alone_in_a_new_engine(make, Seq(1)) == await alone_in_a_new_engine(make, Seq(1))


async def reading_stands_at_the_position_it_was_told(make: MakeHost) -> None:
    async with running(make) as session:
        chunk = session.ready.chunk_tokens
        length = session.open(Seq(1))
        session.open(Seq(2), prompt=chunk)
        session.step(read=Seq(1), read_until=chunk)
        await session.until_read(Seq(1), chunk)
        session.step(read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.read(Seq(1)) == [chunk]
        session.step(read=Seq(1), read_until=2 * chunk)
        await session.until_read(Seq(1), 2 * chunk)
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    assert session.read(Seq(1)) == [chunk, 2 * chunk, length]


async def one_reads_while_another_decodes(make: MakeHost) -> None:
    alone = [await undisturbed(make, seq) for seq in (Seq(1), Seq(2))]
    async with running(make) as session:
        session.open(Seq(1))
        session.open(Seq(2))
        session.step(read=Seq(1))
        await session.until_written(Seq(1), 1)
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(1), Seq(2))
    assert [session.tokens(Seq(1)), session.tokens(Seq(2))] == alone


# -- parking --------------------------------------------------------------------------------------------------------


async def a_parked_read_stands_still_and_goes_on_as_if_nothing_was(make: MakeHost) -> None:
    alone = await undisturbed(make, Seq(1))
    async with running(make) as session:
        session.open(Seq(1))
        session.open(Seq(2))
        session.step(read=Seq(1), read_until=session.ready.chunk_tokens)
        await session.until_read(Seq(1), session.ready.chunk_tokens)
        parked = Took(session.step(read=Seq(2)))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1), after=parked) == []
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    assert session.tokens(Seq(1)) == alone


async def a_read_parked_in_the_midst_of_a_chunk_goes_on_as_if_nothing_was(make: MakeHost) -> None:
    alone = await undisturbed(make, Seq(1))
    async with running(make) as session:
        session.open(Seq(1))
        session.open(Seq(2))
        for _ in range(3):
            session.step(read=Seq(1))
            n = session.step()
            await session.until(Took(n))
            assert session.about(Seq(1), after=Took(n)) == []
        parked = Took(session.step(read=Seq(2)))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1), after=parked) == []
        session.step(Seq(1), read=Seq(1))
        await session.until_ended(Seq(1))
    assert session.tokens(Seq(1)) == alone


async def a_parked_answer_stands_still_and_goes_on_as_if_nothing_was(make: MakeHost) -> None:
    long = {"answer": ANSWER + 2}
    async with running(make) as session:
        page = session.ready.page_tokens
    alone = await undisturbed(make, Seq(1), prompt=2 * page, **long)
    async with running(make) as session:
        session.open(Seq(1), prompt=2 * page, hold=2 * page, **long)
        session.step(read=Seq(1))
        await session.until(Wants(Seq(1)))
        session.open(Seq(2))
        parked = Took(session.step(read=Seq(2)))
        await session.until(parked)
        session.grant(Seq(1), ANSWER + 2)
        await session.until_ended(Seq(2))
        assert session.about(Seq(1), after=parked) == []
        session.step(Seq(1))
        await session.until_ended(Seq(1))
    assert session.tokens(Seq(1)) == alone


async def more_half_read_prompts_than_workspaces_all_end(make: MakeHost) -> None:
    seqs = [Seq(i) for i in (1, 2, 3)]
    alone = [await undisturbed(make, seq) for seq in seqs]
    async with running(make) as session:
        for seq in seqs:
            session.open(seq)
        for seq in (*seqs, *reversed(seqs), *seqs):
            n = session.step(read=seq)
            await session.until(Took(n))
        for seq in seqs:
            session.step(read=seq)
            await session.until_ended(seq)
    assert [session.tokens(seq) for seq in seqs] == alone


# -- steps ----------------------------------------------------------------------------------------------------------


async def the_newest_step_counts_and_a_late_one_is_ignored(make: MakeHost) -> None:
    """B04: a step that comes late, or after a newer one, parks nobody; none is lost."""
    async with running(make) as session:
        session.open(Seq(1))
        session.tell(Step(5, read=Seq(1)), Step(3), Step(5), Step(4))
        await session.until_ended(Seq(1))
        session.tell(Step(6))
        await session.until(Took(6))
    assert [fact.n for fact in session.facts if isinstance(fact, Took)] == [5, 6]


async def every_step_that_is_in_force_is_said_once_and_in_order(make: MakeHost) -> None:
    async with running(make) as session:
        session.open(Seq(1))
        for _ in range(20):
            last = session.step(read=Seq(1))
        await session.until(Took(last))
        await session.until_ended(Seq(1))
    taken = [fact.n for fact in session.facts if isinstance(fact, Took)]
    assert taken == sorted(set(taken))
    assert taken[-1] == last


async def a_step_that_meets_the_end_of_a_read_parks_nobody_by_mistake(make: MakeHost) -> None:
    """B04: the step was meant for the read that has just ended; the sequence decodes on, and so does the next one."""
    async with running(make) as session:
        length = session.open(Seq(1))
        session.open(Seq(2))
        session.step(read=Seq(1))
        await session.until_read(Seq(1), length)
        session.step(Seq(2), read=Seq(1))
        await session.until_ended(Seq(1))
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(2))


async def a_step_that_names_strangers_runs_those_it_knows(make: MakeHost) -> None:
    async with running(make) as session:
        session.tell(Grant(Seq(70), (0,)), Close(Seq(71)))
        session.step(Seq(72), read=Seq(73))
        session.open(Seq(1))
        session.step(Seq(72), Seq(1), Seq(1), read=Seq(1))
        await session.until_ended(Seq(1))
    assert not any(session.about(Seq(seq)) for seq in range(70, 74))


async def an_unread_sequence_among_the_decoders_does_not_run(make: MakeHost) -> None:
    async with running(make) as session:
        session.open(Seq(1))
        session.open(Seq(2))
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1)) == []


# -- pages ----------------------------------------------------------------------------------------------------------


async def a_read_without_pages_says_so_once_and_goes_on_when_it_has_them(make: MakeHost) -> None:
    async with running(make) as session:
        chunk = session.ready.chunk_tokens
        length = session.open(Seq(1), hold=chunk)
        session.step(read=Seq(1))
        await session.until(Wants(Seq(1)))
        assert session.read(Seq(1)) == [chunk]
        session.open(Seq(2))
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1)).count(Wants(Seq(1))) == 1
        session.step(read=Seq(1))
        session.grant(Seq(1), length - chunk + ANSWER)
        await session.until_ended(Seq(1))


async def an_answer_at_the_end_of_its_pages_says_so_once_and_the_others_go_on(make: MakeHost) -> None:
    async with running(make) as session:
        page = session.ready.page_tokens
        session.open(Seq(1), prompt=page, hold=page)
        session.step(read=Seq(1))
        await session.until(Wants(Seq(1)))
        assert len(session.rows(Seq(1))) == 1, "its first token needs no page until the second is asked for"
        session.open(Seq(2))
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1)).count(Wants(Seq(1))) == 1
        session.grant(Seq(1), ANSWER)
        await session.until_ended(Seq(1))
    assert len(session.rows(Seq(1))) == ANSWER


# -- a known beginning ----------------------------------------------------------------------------------------------

LIKE_1 = Seq(1 + 23)
"""Has the prompt that sequence 1 has."""


async def half_way(session: Session) -> tuple[int, ...]:
    """Sequence 1 has read two chunks; the pages of its own in which they lie, as far as they are full."""
    chunk = session.ready.chunk_tokens
    length = session.open(Seq(1), hold=0)
    pages = session.grant(Seq(1), length + ANSWER)
    session.step(read=Seq(1), read_until=2 * chunk)
    await session.until_read(Seq(1), 2 * chunk)
    return pages[: 2 * chunk // session.ready.page_tokens]


async def a_known_beginning_is_not_read_again(make: MakeHost) -> None:
    alone = await undisturbed(make, LIKE_1)
    async with running(make) as session:
        pages = await half_way(session)
        chunk = session.ready.chunk_tokens
        for count, seq in enumerate((LIKE_1, Seq(LIKE_1 + 23)), start=1):
            length = session.open(seq, cached=pages[: count * chunk // session.ready.page_tokens], hold=2 * chunk)
            session.step(read=seq, read_until=length)
            await session.until_read(seq, length)
            session.grant(seq, ANSWER)
            session.step(seq)
            await session.until_ended(seq)
            assert session.read(seq) == [end for end in (chunk, 2 * chunk, length) if end > count * chunk]
            assert session.tokens(seq) == alone
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    assert session.tokens(Seq(1)) == alone


async def a_known_beginning_outlives_whoever_read_it(make: MakeHost) -> None:
    """Closed while another reads, and both gone before a third comes."""
    alone = await undisturbed(make, LIKE_1)
    async with running(make) as session:
        pages = await half_way(session)
        session.open(LIKE_1, cached=pages[:1])
        session.step(read=LIKE_1)
        session.tell(Close(Seq(1)))
        await session.until_ended(LIKE_1)
        assert Closed(Seq(1)) in session.facts
        third = Seq(LIKE_1 + 23)
        session.open(third, cached=pages[:1])
        session.step(read=third)
        await session.until_ended(third)
    assert session.tokens(LIKE_1) == session.tokens(third) == alone


# -- the arena ------------------------------------------------------------------------------------------------------


def swaps(seq: Seq, pages: tuple[int, ...], back: tuple[int, ...]) -> tuple[SwapOut, SwapIn]:
    """From pages to the arena, backwards, and to others."""
    slots = tuple(reversed(range(len(pages))))
    return SwapOut(seq, pages, slots), SwapIn(seq, slots, back)


async def pages_go_to_the_arena_and_come_back_elsewhere(make: MakeHost) -> None:
    """Between two chunks; all that it had is another's meanwhile."""
    alone = [await undisturbed(make, seq) for seq in (Seq(1), Seq(2))]
    async with running(make) as session:
        length = session.open(Seq(1), hold=0)
        pages = session.grant(Seq(1), length + ANSWER)
        session.step(read=Seq(1), read_until=session.ready.chunk_tokens)
        await session.until_read(Seq(1), session.ready.chunk_tokens)
        session.step()
        back = session.fresh(len(pages))
        out, into = swaps(Seq(1), pages, back)
        session.tell(out)
        await session.until_swapped(out)
        session.open(Seq(2), hold=0)
        session.tell(Grant(Seq(2), pages))
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.read(Seq(1)) == [session.ready.chunk_tokens], "it does not run while it is away"
        assert Wants(Seq(1)) not in session.facts
        session.tell(into)
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    assert [session.tokens(Seq(1)), session.tokens(Seq(2))] == alone
    [there] = [fact for fact in session.facts if isinstance(fact, SwappedOut)]
    [here] = [fact for fact in session.facts if isinstance(fact, SwappedIn)]
    assert (there.pages, there.slots) == (out.pages, out.slots)
    assert (here.pages, here.slots) == (into.pages, into.slots)


async def a_half_read_chunk_goes_on_when_its_pages_are_back(make: MakeHost) -> None:
    """However late the next step comes: the bound keeps it from its end, where there would be nothing to move."""
    alone = await undisturbed(make, Seq(1))
    async with running(make) as session:
        length = session.open(Seq(1), hold=0)
        pages = session.grant(Seq(1), length + ANSWER)
        places = [pages, session.fresh(len(pages))]
        for turn in range(3):
            session.step(read=Seq(1), read_until=2 * session.ready.chunk_tokens)
            await session.until(Took(session.step()))
            out, into = swaps(Seq(1), places[turn % 2], places[(turn + 1) % 2])
            session.tell(out)
            await session.until_swapped(out)
            session.tell(into)
            await session.until_swapped(into)
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
    assert session.tokens(Seq(1)) == alone


async def an_answer_goes_on_when_its_pages_are_back(make: MakeHost) -> None:
    async with running(make) as session:
        page = session.ready.page_tokens
    alone = await undisturbed(make, Seq(1), prompt=2 * page)
    async with running(make) as session:
        session.open(Seq(1), prompt=2 * page, hold=0)
        pages = session.grant(Seq(1), 2 * page)
        session.step(read=Seq(1))
        await session.until(Wants(Seq(1)))
        out, into = swaps(Seq(1), pages, session.fresh(len(pages)))
        session.tell(out)
        await session.until_swapped(out)
        session.grant(Seq(1), ANSWER)
        session.tell(into)
        await session.until_ended(Seq(1))
    assert session.tokens(Seq(1)) == alone


async def a_close_frees_pages_and_slots_of_a_move_at_once(make: MakeHost) -> None:
    alone = await undisturbed(make, Seq(2))
    for back in (False, True):
        async with running(make) as session:
            length = session.open(Seq(1), hold=0)
            pages = session.grant(Seq(1), length + ANSWER)
            out, into = swaps(Seq(1), pages, session.fresh(len(pages)))
            session.tell(out)
            if back:
                await session.until_swapped(out)
                session.tell(into)
            session.open(Seq(2), hold=0)
            session.tell(Close(Seq(1)), Grant(Seq(2), into.pages if back else pages))
            await session.until(Closed(Seq(1)))
            there, here = swaps(Seq(2), into.pages if back else pages, pages if back else into.pages)
            session.tell(there)
            await session.until_swapped(there)
            session.tell(here)
            session.step(Seq(1), read=Seq(2))
            await session.until_ended(Seq(2))
        assert session.about(Seq(1), after=Closed(Seq(1))) == []
        assert session.tokens(Seq(2)) == alone


async def moves_of_a_sequence_that_has_ended_are_ignored(make: MakeHost) -> None:
    async with running(make) as session:
        session.open(Seq(1))
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
        before = session.about(Seq(1))
        session.tell(SwapOut(Seq(1), (0,), (0,)), SwapIn(Seq(1), (0,), (0,)))
        session.open(Seq(2))
        session.step(read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1)) == before


# -- leaving --------------------------------------------------------------------------------------------------------


async def a_closed_sequence_is_gone_in_every_state(make: MakeHost) -> None:
    """Opened, reading, parked in its read, decoding, parked in its answer: and nothing is said of it afterwards."""
    for state in ("opened", "reading", "parked reading", "decoding", "parked decoding"):
        async with running(make) as session:
            page, chunk = session.ready.page_tokens, session.ready.chunk_tokens
            decoding = "decoding" in state
            # Its pages hold it: without their end it could be done before the close comes.
            session.open(Seq(1), prompt=page if decoding else None, hold=page if decoding else chunk)
            if state != "opened":
                session.step(read=Seq(1))
                await session.until(Wants(Seq(1)) if decoding else Took(1))
            if "parked" in state:
                await session.until(Took(session.step()))
            session.tell(Close(Seq(1)), Close(Seq(1)))
            await session.until(Closed(Seq(1)))
            session.open(Seq(2))
            session.step(Seq(1), read=Seq(2))
            await session.until_ended(Seq(2))
        assert session.about(Seq(1), after=Closed(Seq(1))) == [], state


async def pages_of_a_closed_sequence_can_be_granted_in_the_same_breath(make: MakeHost) -> None:
    alone = await undisturbed(make, Seq(2))
    async with running(make) as session:
        length = session.open(Seq(1), hold=0)
        pages = session.grant(Seq(1), length + ANSWER)
        session.step(read=Seq(1))
        await session.until(Took(1))
        session.open(Seq(2), hold=0)
        session.tell(Close(Seq(1)), Grant(Seq(2), pages))
        session.step(read=Seq(2))
        await session.until_ended(Seq(2))
    assert session.tokens(Seq(2)) == alone


async def messages_to_a_sequence_that_has_ended_are_ignored(make: MakeHost) -> None:
    async with running(make) as session:
        session.open(Seq(1))
        session.step(read=Seq(1))
        await session.until_ended(Seq(1))
        before = session.about(Seq(1))
        session.grant(Seq(1), 1)
        session.tell(Close(Seq(1)))
        session.step(Seq(1), read=Seq(1))
        session.open(Seq(2))
        session.step(Seq(1), read=Seq(2))
        await session.until_ended(Seq(2))
        assert session.about(Seq(1)) == before


# -- the end of the engine ------------------------------------------------------------------------------------------


async def a_stopped_engine_says_so_last_and_its_run_returns(make: MakeHost) -> None:
    async with running(make) as session:
        session.open(Seq(1))
        session.open(Seq(2))
        session.step(read=Seq(1))
        await session.until(Took(1))
        session.tell(Stop(), Close(Seq(1)))
        session.step(read=Seq(2))
        with trio.fail_after(PATIENCE_S):
            await session.ended.wait()
        session.tell(Close(Seq(2)), Stop())
    assert session.facts.count(Stopped()) == 1
    assert session.facts[-1] == Stopped()


async def a_cancelled_host_ends_and_says_nothing_more(make: MakeHost) -> None:
    host = make()
    session = Session(host)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            session.ready = await nursery.start(host.run, session.hear)
            session.open(Seq(1), answer=ANSWER)
            session.step(read=Seq(1))
            await session.until(Took(1))
            nursery.cancel_scope.cancel()
    said = list(session.facts)
    session.step(read=Seq(1))
    for _ in range(10):
        await trio.lowlevel.checkpoint()
    assert session.facts == said


# -- what an engine before this one has written -----------------------------------------------------------------------


async def what_was_written_before_is_decoded_again_and_not_said(make: MakeHost) -> None:
    whole = await undisturbed(make, Seq(1))
    for count in (1, 2, ANSWER - 1):
        async with running(make) as session:
            session.open(Seq(1), written=whole[:count])
            session.step(read=Seq(1))
            await session.until_ended(Seq(1))
        assert session.tokens(Seq(1)) == whole[count:]
        steps = [fact for fact in session.facts if isinstance(fact, Decoded)]
        assert [fact.again for fact in steps] == [(Seq(1),)] * (count - 1) + [()] * (ANSWER - count)
        assert [row.ended for row in session.rows(Seq(1))] == [None] * (ANSWER - count - 1) + ["length"]


async def one_that_decodes_again_takes_part_in_the_steps_of_others(make: MakeHost) -> None:
    whole = [await undisturbed(make, Seq(n)) for n in (1, 2)]
    async with running(make) as session:
        # Held up at its first token, so that the other is surely there when it goes on.
        length = session.open(Seq(1), hold=2 * session.ready.chunk_tokens + session.ready.chunk_tokens // 2)
        session.step(read=Seq(1))
        await session.until_written(Seq(1), 1)
        session.open(Seq(2), written=whole[1][:5])
        session.step(Seq(1), read=Seq(2))
        await session.until_read(Seq(2), length)
        session.grant(Seq(1), ANSWER)
        await session.until_ended(Seq(1), Seq(2))
    assert session.tokens(Seq(1)) == whole[0]
    assert session.tokens(Seq(2)) == whole[1][5:]
    assert sum(Seq(2) in fact.again for fact in session.facts if isinstance(fact, Decoded)) == 4


async def one_that_decodes_again_waits_for_pages_is_parked_and_is_closed_like_any_other(make: MakeHost) -> None:
    async with running(make) as session:
        page = session.ready.page_tokens
        alone, other = [await undisturbed(make, Seq(n), prompt=page) for n in (2, 3)]
        session.open(Seq(2), prompt=page, hold=page, written=alone[:6])
        session.step(read=Seq(2))
        await session.until(Wants(Seq(2)))
        assert session.tokens(Seq(2)) == []
        session.step()
        session.grant(Seq(2), ANSWER)
        session.step(Seq(2))
        await session.until_ended(Seq(2))
        assert session.tokens(Seq(2)) == alone[6:]
        session.open(Seq(3), prompt=page, hold=page, written=other[:6])
        session.step(read=Seq(3))
        session.tell(Close(Seq(3)))
        await session.until(Closed(Seq(3)))


ALL = (
    an_engine_says_what_it_has,
    a_request_is_read_chunk_by_chunk_and_answered,
    a_first_token_follows_its_last_chunk_at_once,
    equal_engines_give_equal_tokens,
    reading_stands_at_the_position_it_was_told,
    one_reads_while_another_decodes,
    a_parked_read_stands_still_and_goes_on_as_if_nothing_was,
    a_read_parked_in_the_midst_of_a_chunk_goes_on_as_if_nothing_was,
    a_parked_answer_stands_still_and_goes_on_as_if_nothing_was,
    more_half_read_prompts_than_workspaces_all_end,
    the_newest_step_counts_and_a_late_one_is_ignored,
    every_step_that_is_in_force_is_said_once_and_in_order,
    a_step_that_meets_the_end_of_a_read_parks_nobody_by_mistake,
    a_step_that_names_strangers_runs_those_it_knows,
    an_unread_sequence_among_the_decoders_does_not_run,
    a_read_without_pages_says_so_once_and_goes_on_when_it_has_them,
    an_answer_at_the_end_of_its_pages_says_so_once_and_the_others_go_on,
    a_known_beginning_is_not_read_again,
    a_known_beginning_outlives_whoever_read_it,
    pages_go_to_the_arena_and_come_back_elsewhere,
    a_half_read_chunk_goes_on_when_its_pages_are_back,
    an_answer_goes_on_when_its_pages_are_back,
    a_close_frees_pages_and_slots_of_a_move_at_once,
    moves_of_a_sequence_that_has_ended_are_ignored,
    a_closed_sequence_is_gone_in_every_state,
    pages_of_a_closed_sequence_can_be_granted_in_the_same_breath,
    messages_to_a_sequence_that_has_ended_are_ignored,
    what_was_written_before_is_decoded_again_and_not_said,
    one_that_decodes_again_takes_part_in_the_steps_of_others,
    one_that_decodes_again_waits_for_pages_is_parked_and_is_closed_like_any_other,
    a_stopped_engine_says_so_last_and_its_run_returns,
    a_cancelled_host_ends_and_says_nothing_more,
)
"""For `@pytest.mark.parametrize("holds", ALL, ids=lambda holds: holds.__name__)`."""
