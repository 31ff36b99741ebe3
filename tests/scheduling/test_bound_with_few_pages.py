"""R12 where pages are scarce: what they add to the bound, with an arena and without, and that nothing beats the sum."""

from __future__ import annotations

import pytest
from attrs import evolve
from desk import Desk
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bound import RATES, TINY, WORK, Client, Loop, clients, rules, without_a_purse

from strata.config import SchedulerSettings
from strata.messages import Figures, Seq
from strata.scheduling import Decision
from strata.scheduling.bound import Bound

LONG = 960
"""Tokens of a prompt that, with an answer of 20, takes 62 pages."""


class ScarceLoop(Loop):
    """A loop that remembers who had to wait for pages, and who held them when it had been passed for long enough."""

    def __init__(self, settings: SchedulerSettings, *, pages: int, slots: int) -> None:
        Desk.__init__(self, settings, WORK, pages=pages, slots=slots)
        self.older: dict[Seq, tuple[Seq, ...]] = {}
        self.blocked_since: dict[Seq, float] = {}
        self.holders: dict[Seq, tuple[Seq, ...]] = {}
        """Of each that was blocked for `bypass_s`: those that held pages then."""

    def decide(self) -> Decision:
        decision = super().decide()
        queued = [seq for seq in self.live if self.state(seq) == "queued"]
        if queued and self.scheduler.statistics(self.now).blocked:
            first = queued[0]
            since = self.blocked_since.setdefault(first, self.now)
            if self.now >= since + self.settings.bypass_s and first not in self.holders:
                self.holders[first] = tuple(seq for seq in self.live if seq not in queued)
        return decision

    @property
    def moves_s(self) -> float:
        now = self.scheduler.statistics(self.now)
        return (now.pages_out + now.pages_in) * self.work.move_s

    def so_far(self, seq: Seq) -> Figures:
        figures = self.ended[seq].figures if seq in self.ended else self.scheduler.figures(seq, self.now)
        assert figures is not None
        return figures

    def blocked(self, seq: Seq) -> list[tuple[Seq, ...]]:
        """For it, and for each that is older, if it was blocked: who held the pages."""
        return [self.holders.get(one, ()) for one in self.older[seq] if one in self.blocked_since]


def done_parts(loop: ScarceLoop) -> dict[Seq, float]:
    """With one row: of all that came, what each has waited as a part of its bound."""
    bound = Bound(loop.settings, RATES)
    parts = {}
    for seq, older in loop.older.items():
        work_s = sum(map(loop.alone_s, older))
        # All the work of those that are older counts anyhow.
        younger = ([loop.alone_s(other) for other in held if other not in older] for held in loop.blocked(seq))
        pages_s = sum(bound.pages_s(sum(works)) for works in younger)
        parts[seq] = loop.so_far(seq).total_s / (bound.done_s(work_s) + pages_s + loop.moves_s)
    return parts


def first_token_parts(loop: ScarceLoop) -> dict[Seq, float]:
    """With a row for everybody: the same for first tokens."""
    bound = Bound(loop.settings, RATES)
    parts = {}
    for seq, older in loop.older.items():
        pages_s = 0.0
        for held in loop.blocked(seq):
            writes_s = max((loop.asked[other].max_tokens * bound.gap_s for other in held), default=0.0)
            pages_s += bound.pages_s(sum(map(loop.read_s, held)) / loop.settings.read_share + writes_s)
        figures = loop.so_far(seq)
        waited = figures.total_s if figures.ttft_s is None else figures.ttft_s
        parts[seq] = waited / (bound.first_token_s(sum(map(loop.read_s, older))) + pages_s + loop.moves_s)
    return parts


def press(chosen: SchedulerSettings, others: list[Client], *, pages: int, slots: int, limit_s: float) -> ScarceLoop:
    """Short ones come first, then one that takes nearly all pages; short ones come again and again until it ends."""
    loop = ScarceLoop(chosen, pages=pages, slots=slots)
    for client in others:
        loop.come(client.prompt, client.answer)
    loop.go_on([loop.come(LONG, 20)], others, limit_s)
    return loop


SCARCE = [(62, 0), (62, 1), (66, 0), (66, 8), (80, 62)]
"""Pages and slots: exactly what the longest takes, a little more, and an arena that is small, or as large."""


@pytest.mark.parametrize(("pages", "slots"), SCARCE)
@pytest.mark.parametrize("rows", [1, 16])
def test_one_that_takes_nearly_all_pages_gets_them_however_many_short_ones_come(rows: int, pages: int, slots: int):
    """B12: it fits only between two of them; each that started past it then took its pages, and paid nothing.

    R12: within the bound, and what pages add to it.
    """
    chosen = evolve(rules(rows, 0.2, 0.25), bypass_s=0.5)
    loop = press(chosen, TINY, pages=pages, slots=slots, limit_s=15.0)
    parts = done_parts(loop) if rows == 1 else first_token_parts(loop)
    assert Seq(4) in loop.ended
    assert max(parts.values()) <= 1


def test_a_short_one_that_left_its_pages_gives_its_place_to_none_that_takes_them():
    """B12: which read nothing to speak of, wrote long, and held what the oldest of all waited for, again and again."""
    chosen = evolve(rules(1, 1.0, 0.25), bypass_s=0.3)
    loop = ScarceLoop(chosen, pages=70, slots=0)
    others = [
        Client(prompt=1, answer=300, think_s=0.0),
        Client(prompt=40, answer=3, think_s=0.2),
        Client(prompt=400, answer=300, think_s=0.01),
        Client(prompt=100, answer=30, think_s=0.0),
    ]
    for client in others[:2]:
        loop.come(client.prompt, client.answer)
    long = loop.come(LONG, 20)
    loop.go_on([long], others, limit_s=40.0)
    assert done_parts(loop)[long] < 0.5


@pytest.mark.parametrize(("pages", "slots"), [(66, 0), (66, 8)])
@pytest.mark.parametrize("rows", [1, 16])
def test_without_a_purse_it_misses_the_bound_with_few_pages_too(rows: int, pages: int, slots: int):
    """R12: the bound's test can fail."""
    chosen = evolve(without_a_purse(rules(rows, 0.2, 0.25)), bypass_s=0.5)
    # With a row for everybody only reading is in its way.
    others = TINY if rows == 1 else [Client(prompt=20, answer=1, think_s=0.0)] * 3
    loop = press(chosen, others, pages=pages, slots=slots, limit_s=11.0)
    loop.settings = evolve(chosen, pass_burst_s=0.2)
    parts = done_parts(loop) if rows == 1 else first_token_parts(loop)
    assert parts[Seq(4)] > 1.1


def test_the_worst_arrivals_that_a_search_found_come_near_the_bound_with_few_pages_too():
    """R12: two that take nearly all pages, one behind the other; of some hundred patterns this one came near."""
    loop = ScarceLoop(evolve(rules(1, 0.1, 0.75, quantum_s=0.1), bypass_s=0.3), pages=100, slots=0)
    sizes = [(100, 30, 0.01), (10, 3, 0.01), (100, 3, 0.0), (100, 1, 0.0)]
    others = [Client(prompt=prompt, answer=answer, think_s=think_s) for prompt, answer, think_s in sizes]
    for client in others[:2]:
        loop.come(client.prompt, client.answer)
    loop.come(LONG, 40)
    loop.go_on([loop.come(LONG, 20)], others, limit_s=40.0)
    assert 0.85 < max(done_parts(loop).values()) <= 1


@settings(max_examples=12, deadline=None)
@given(
    rows=st.sampled_from([1, 16]),
    pages=st.sampled_from([63, 66, 80]),
    slots=st.sampled_from([0, 0, 4, 63]),
    burst_s=st.sampled_from([0.0, 0.2, 1.0]),
    share=st.sampled_from([0.25, 0.5]),
    quantum_s=st.sampled_from([0.0, 0.1, 5.0]),
    bypass_s=st.sampled_from([0.0, 0.3, 1.0]),
    expect=st.sampled_from([1, 256]),
    others=st.lists(clients, min_size=1, max_size=4),
)
def test_no_arrivals_beat_the_bound_where_pages_are_few(
    rows: int,
    pages: int,
    slots: int,
    burst_s: float,
    share: float,
    quantum_s: float,
    bypass_s: float,
    expect: int,
    others: list[Client],
):
    """B09, B12, B13: with all that few pages add."""
    chosen = evolve(rules(rows, burst_s, share, quantum_s), bypass_s=bypass_s, expect_new_tokens=expect)
    loop = press(chosen, others, pages=pages, slots=slots, limit_s=12.0)
    parts = done_parts(loop) if rows == 1 else first_token_parts(loop)
    assert max(parts.values()) <= 1
