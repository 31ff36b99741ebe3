"""The page ledger, walked: each page is free, or held by those that say so, and none is lost or taken from anybody."""

from __future__ import annotations

import pytest
from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata.messages import Seq
from strata.scheduling.pages import Pages
from strata.scheduling.prefix import chain

seqs = st.integers(0, 6).map(Seq)
prompts = st.lists(st.integers(0, 1), max_size=6).map(tuple)
"""A page holds one token, and there are two."""


@define
class Owner:
    worst: int
    tokens: tuple[int, ...]
    pages: list[int] = field(factory=list)
    read: int = 0
    """Pages."""


class Ledger(RuleBasedStateMachine):
    """Owners come, take pages one by one or many, read prompts into them, and go; dictionaries say what should hold."""

    @initialize(total=st.integers(0, 20))
    def begin(self, total: int) -> None:
        self.pages = Pages(total)
        self.owners: dict[Seq, Owner] = {}
        self.contents: dict[int, tuple[int, ...]] = {}
        """Of each page all tokens up to its end, once they were read to it."""

    @rule(seq=seqs, worst=st.integers(0, 22), tokens=prompts)
    def reserve(self, seq: Seq, worst: int, tokens: tuple[int, ...]) -> None:
        free = self.pages.total - sum(owner.worst for owner in self.owners.values())
        known = self.pages.known(chain(tokens, 1))
        for place, page in enumerate(known, 1):
            assert self.contents[page] == tokens[:place], "a page holds what its name says"
        if seq not in self.owners and len(known) <= worst <= free:
            assert self.pages.reserve(seq, worst, chain(tokens, 1)) == known
            self.owners[seq] = Owner(worst, tokens, list(known), len(known))
        else:
            with pytest.raises(ValueError, match="pages"):
                self.pages.reserve(seq, worst, chain(tokens, 1))

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), number=st.integers(0, 8))
    def grant(self, data: st.DataObject, number: int) -> None:
        seq, owner = self.one(data)
        if len(owner.pages) + number <= owner.worst:
            granted = self.pages.grant(seq, number)
            assert len(granted) == number
            assert not set(granted) & self.held(), "nobody relies on a page that is granted"
            owner.pages.extend(granted)
            for page in granted:
                self.contents.pop(page, None)
        else:
            with pytest.raises(ValueError, match="asks for"):
                self.pages.grant(seq, number)

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), pages=st.integers(0, 4))
    def read(self, data: st.DataObject, pages: int) -> None:
        """Its prompt, page by page as far as it has them; what it shares is never among those that it writes."""
        seq, owner = self.one(data)
        end = min(owner.read + pages, len(owner.tokens), len(owner.pages))
        for place in range(owner.read, end):
            assert sum(owner.pages[place] in other.pages for other in self.owners.values()) == 1
            self.contents[owner.pages[place]] = owner.tokens[: place + 1]
        owner.read = end
        self.pages.share(seq, chain(owner.tokens, 1)[:end])

    @rule(seq=seqs)
    def release(self, seq: Seq) -> None:
        owner = self.owners.pop(seq, None)
        assert self.pages.release(seq) == (0 if owner is None else len(owner.pages))

    @rule(seq=seqs)
    def a_stranger_is_granted_nothing(self, seq: Seq) -> None:
        if seq not in self.owners:
            with pytest.raises(KeyError):
                self.pages.grant(seq, 1)

    @invariant()
    def each_page_is_free_or_held_and_none_is_lost(self) -> None:
        pages, held = self.pages, self.held()
        assert held <= set(range(pages.total))
        assert pages.held == len(held)
        assert pages.free + pages.held == pages.total
        assert 0 <= pages.cached <= pages.free
        assert pages.reserved == sum(owner.worst for owner in self.owners.values()) == pages.total - pages.room
        for seq, owner in self.owners.items():
            assert pages.of(seq) == tuple(owner.pages)
            assert pages.count(seq) == len(owner.pages) <= owner.worst
        for page in held:
            assert pages.holders(page) == sum(page in owner.pages for owner in self.owners.values())

    def one(self, data: st.DataObject) -> tuple[Seq, Owner]:
        seq = data.draw(st.sampled_from(sorted(self.owners)))
        return seq, self.owners[seq]

    def held(self) -> set[int]:
        return {page for owner in self.owners.values() for page in owner.pages}

    def teardown(self) -> None:
        for seq in list(getattr(self, "owners", ())):
            self.pages.release(seq)
        if hasattr(self, "pages"):
            assert self.pages.free == self.pages.room == self.pages.total


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_ledger_shows_itself():
    pages = Pages(8)
    pages.reserve(Seq(1), 6)
    pages.grant(Seq(1), 5)
    assert repr(pages) == "<Pages 3 free, 5 held by 1>"


def test_an_owner_never_gets_more_than_it_reserved_though_pages_are_free():
    pages = Pages(8)
    pages.reserve(Seq(1), 2)
    assert pages.grant(Seq(1), 2) == (0, 1)
    with pytest.raises(ValueError, match="holds 2 of 2 pages"):
        pages.grant(Seq(1), 1)


def reads(pages: Pages, seq: Seq, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """One comes, reads what is not known, and goes; what was known."""
    known = pages.reserve(seq, len(tokens), chain(tokens, 1))
    pages.grant(seq, len(tokens) - len(known))
    pages.share(seq, chain(tokens, 1))
    pages.release(seq)
    return known


def test_what_was_used_last_is_kept_longest_and_ends_go_before_beginnings():
    pages = Pages(5)
    reads(pages, Seq(1), (1, 2, 3))
    reads(pages, Seq(2), (7, 8))
    assert pages.cached == pages.free == 5
    assert reads(pages, Seq(3), (1,)) == (0,), "used again"
    pages.reserve(Seq(4), 2)
    pages.grant(Seq(4), 2)
    assert len(pages.known(chain((1, 2, 3), 1))) == 1, "3 and 2 were used longest ago"
    assert len(pages.known(chain((7, 8), 1))) == 2
    pages.reserve(Seq(5), 1)
    pages.grant(Seq(5), 1)
    assert len(pages.known(chain((7, 8), 1))) == 1, "8 goes before 7"
    assert len(pages.known(chain((1, 2, 3), 1))) == 1


def test_two_that_read_the_same_at_once_keep_their_pages_apart():
    pages, tokens = Pages(8), chain((1, 2, 3), 1)
    for seq in (Seq(1), Seq(2)):
        pages.reserve(seq, 3, tokens)
        pages.grant(seq, 3)
    pages.share(Seq(1), tokens)
    pages.share(Seq(2), tokens)
    assert pages.known(tokens) == pages.of(Seq(1))
    pages.release(Seq(1))
    assert (pages.cached, pages.held) == (3, 3)
    pages.release(Seq(2))
    assert (pages.cached, pages.free) == (3, 8)
