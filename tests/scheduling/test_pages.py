"""The page ledger, walked: each page has one owner, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata.messages import Seq
from strata.scheduling.pages import Pages

seqs = st.integers(0, 6).map(Seq)


class Ledger(RuleBasedStateMachine):
    """Owners come, take pages one by one or many, and go; a plain dictionary says what should hold."""

    @initialize(total=st.integers(0, 20))
    def begin(self, total: int) -> None:
        self.pages = Pages(total)
        self.worst: dict[Seq, int] = {}
        self.owned: dict[Seq, list[int]] = {}

    @rule(seq=seqs, worst=st.integers(0, 22))
    def reserve(self, seq: Seq, worst: int) -> None:
        fits = seq not in self.worst and sum(self.worst.values()) + worst <= self.pages.total
        if fits:
            self.pages.reserve(seq, worst)
            self.worst[seq], self.owned[seq] = worst, []
        else:
            with pytest.raises(ValueError, match="pages"):
                self.pages.reserve(seq, worst)

    @precondition(lambda self: self.worst)
    @rule(data=st.data(), number=st.integers(0, 8))
    def grant(self, data: st.DataObject, number: int) -> None:
        seq = data.draw(st.sampled_from(sorted(self.worst)))
        if len(self.owned[seq]) + number <= self.worst[seq]:
            granted = self.pages.grant(seq, number)
            assert len(granted) == number
            self.owned[seq].extend(granted)
        else:
            with pytest.raises(ValueError, match="asks for"):
                self.pages.grant(seq, number)

    @rule(seq=seqs)
    def release(self, seq: Seq) -> None:
        assert self.pages.release(seq) == len(self.owned.pop(seq, []))
        self.worst.pop(seq, None)

    @rule(seq=seqs)
    def a_stranger_is_granted_nothing(self, seq: Seq) -> None:
        if seq not in self.worst:
            with pytest.raises(KeyError):
                self.pages.grant(seq, 1)

    @invariant()
    def each_page_has_one_owner_and_none_is_lost(self) -> None:
        pages = self.pages
        held = [page for owned in self.owned.values() for page in owned]
        assert len(held) == len(set(held))
        assert set(held) <= set(range(pages.total))
        assert pages.held == len(held)
        assert pages.free + pages.held == pages.total
        assert pages.reserved == sum(self.worst.values()) == pages.total - pages.room
        for seq, owned in self.owned.items():
            assert pages.of(seq) == tuple(owned)
            assert pages.count(seq) == len(owned) <= self.worst[seq]

    def teardown(self) -> None:
        for seq in list(getattr(self, "worst", ())):
            self.pages.release(seq)
        if hasattr(self, "pages"):
            assert self.pages.free == self.pages.room == self.pages.total


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


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
