"""R12: waiting has a bound that no arrival pattern beats, computed from the settings and the engine's rates."""

from __future__ import annotations

import pytest
from attrs import evolve, frozen
from desk import Desk
from hypothesis import given, settings
from hypothesis import strategies as st
from model_engine import Work

from strata.config import SchedulerSettings
from strata.messages import Seq
from strata.scheduling.bound import Bound, Rates, lines

WORK = Work(chunk_tokens=64, slices=4, token_s=0.001, step_s=0.02)
RATES = Rates(chunk_s=WORK.read_s(64), slice_s=WORK.slice_s(64), step_s=WORK.step_s)


@frozen(kw_only=True)
class Client:
    """Sends its next request as soon as the last one is answered."""

    prompt: int
    answer: int
    think_s: float


clients = st.builds(
    Client,
    prompt=st.sampled_from([1, 10, 40, 100, 250]),
    answer=st.integers(1, 30),
    think_s=st.sampled_from([0.0, 0.0, 0.01, 0.2]),
)


def rules(rows: int, burst_s: float, share: float, quantum_s: float = 5.0) -> SchedulerSettings:
    return SchedulerSettings(
        max_running=rows,
        chunk_tokens=WORK.chunk_tokens,
        pass_burst_s=burst_s,
        order_share=share,
        quantum_s=quantum_s,
        turn_wait_s=quantum_s * 0.8,
        finish_tokens=4,
        decode_gap_s=0.05,
    )


def without_a_purse(chosen: SchedulerSettings) -> SchedulerSettings:
    """A purse that is never spent."""
    return evolve(chosen, pass_burst_s=80_000.0)


class Loop(Desk):
    """A desk that remembers who was there when each request came."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings, WORK, pages=10_000)
        self.older: dict[Seq, tuple[Seq, ...]] = {}
        """Itself and all that had come before and not ended."""

    def come(self, prompt: int, answer: int) -> Seq:
        there = tuple(self.live)
        seq = self.submit(prompt, answer)
        self.older[seq] = (*there, seq)
        return seq

    def go_on(self, first: list[Seq], others: list[Client], limit_s: float) -> None:
        """Run until the first ones have ended, or the time is over; the others keep coming."""
        due = [0.0] * len(others)
        sent: list[Seq | None] = [None] * len(others)
        while not all(seq in self.ended for seq in first) and self.now < limit_s:
            for i, client in enumerate(others):
                seq = sent[i]
                if seq is not None and seq in self.ended:
                    due[i], sent[i] = self.now + client.think_s, None
                if sent[i] is None and self.now >= due[i]:
                    sent[i] = self.come(client.prompt, client.answer)
            self.run(1)

    def alone_s(self, seq: Seq) -> float:
        return WORK.alone_s(self.asked[seq].prompt, self.asked[seq].max_tokens)

    def read_s(self, seq: Seq) -> float:
        return WORK.read_s(self.asked[seq].prompt)


def late_by(loop: Loop, chosen: SchedulerSettings) -> float:
    """By how much the worst of all that ended, with one row, missed its bound (seconds; below 0: none did)."""
    bound = Bound(chosen, RATES)
    return max(
        end.figures.total_s - bound.done_s(sum(map(loop.alone_s, loop.older[seq]))) for seq, end in loop.ended.items()
    )


def owed_to_the_oldest_s(loop: Loop, first: Seq, chosen: SchedulerSettings) -> float:
    """What is missing of the share of one that was the oldest from its arrival on (seconds)."""
    figures = loop.ended[first].figures if first in loop.ended else loop.scheduler.figures(first, loop.now)
    assert figures is not None
    return Bound(chosen, RATES).share_s(figures.total_s) - figures.engine_s


def drive(chosen: SchedulerSettings, prompt: int, answer: int, others: list[Client], limit_s: float) -> Loop:
    loop = Loop(chosen)
    first = loop.come(prompt, answer)
    loop.go_on([first], others, limit_s)
    assert owed_to_the_oldest_s(loop, first, chosen) <= 1e-6 or chosen.pass_burst_s > 1000
    if first not in loop.ended:
        loop.withdraw(first)
    return loop


@settings(max_examples=25, deadline=None)
@given(
    burst_s=st.sampled_from([0.0, 0.2, 1.0]),
    share=st.sampled_from([0.25, 0.5]),
    quantum_s=st.sampled_from([0.0, 0.1, 0.5, 5.0]),
    prompt=st.sampled_from([65, 300, 1000]),
    answer=st.sampled_from([1, 40]),
    others=st.lists(clients, min_size=1, max_size=4),
)
def test_with_one_row_no_arrivals_beat_the_bound(
    burst_s: float, share: float, quantum_s: float, prompt: int, answer: int, others: list[Client]
):
    """B09: what comes after you costs you at most 1/order_share of what was before you, plus constants.

    And who stays the oldest has its share at every time, whether it ever ends or not.
    """
    chosen = rules(1, burst_s, share, quantum_s)
    assert late_by(drive(chosen, prompt, answer, others, limit_s=30.0), chosen) <= 1e-6


TINY = [Client(prompt=10, answer=3, think_s=0.0)] * 3


@pytest.mark.parametrize(("prompt", "answer", "others"), [(1000, 40, TINY)])
def test_without_a_purse_the_same_arrivals_beat_the_bound(prompt: int, answer: int, others: list[Client]):
    """The bound's test can fail: a purse that is never spent lets the small ones pass for ever."""
    chosen = rules(1, 0.2, 0.25)
    assert late_by(drive(chosen, prompt, answer, others, limit_s=30.0), chosen) <= 0
    lost = drive(without_a_purse(chosen), prompt, answer, others, limit_s=30.0)
    assert late_by(lost, chosen) > 1
    assert owed_to_the_oldest_s(lost, Seq(1), chosen) > 1


WORST = [Client(prompt=100, answer=4, think_s=0.2), Client(prompt=20, answer=10, think_s=0.0)]


def test_the_worst_arrivals_that_a_search_found_come_near_the_bound_and_keep_it():
    """R12: of some hundred patterns, climbed from many starts, this one came nearest; the bound is not far too high."""
    chosen = rules(1, 0.1, 0.75, quantum_s=0.5)
    loop = drive(chosen, 1000, 1, WORST, limit_s=20.0)
    bound = Bound(chosen, RATES)
    parts = [
        end.figures.total_s / bound.done_s(sum(map(loop.alone_s, loop.older[seq]))) for seq, end in loop.ended.items()
    ]
    assert 0.9 < max(parts) <= 1


def test_who_stays_oldest_gets_its_share_of_the_engine():
    """B09: and the short ones wait for little beside it."""
    chosen = rules(1, 0.2, 0.25)
    loop = drive(chosen, 3000, 4, TINY, limit_s=60.0)
    assert owed_to_the_oldest_s(loop, Seq(1), chosen) <= 0
    assert loop.ended[Seq(1)].figures.parks["short"] > 10


@settings(max_examples=12, deadline=None)
@given(
    share=st.sampled_from([0.25, 0.5]),
    quantum_s=st.sampled_from([0.1, 5.0]),
    prompts=st.lists(st.sampled_from([65, 300, 1000]), min_size=1, max_size=2),
    others=st.lists(clients, min_size=1, max_size=3),
)
def test_with_a_row_for_everybody_first_tokens_and_gaps_keep_their_bounds(
    share: float, quantum_s: float, prompts: list[int], others: list[Client]
):
    """B13: with arrivals that never stop."""
    chosen = rules(16, 0.2, share, quantum_s)
    loop = Loop(chosen)
    loop.go_on([loop.come(prompt, 30) for prompt in prompts], others, limit_s=10.0)
    assert first_token_late_by(loop, chosen) <= 1e-6
    for end in loop.ended.values():
        assert end.figures.longest_gap_s <= Bound(chosen, RATES).gap_s + 1e-6


def first_token_late_by(loop: Loop, chosen: SchedulerSettings) -> float:
    bound = Bound(chosen, RATES)
    late = []
    for seq, older in loop.older.items():
        figures = loop.ended[seq].figures if seq in loop.ended else loop.scheduler.figures(seq, loop.now)
        assert figures is not None
        so_far = figures.ttft_s if figures.ttft_s is not None else figures.total_s
        late.append(so_far - bound.first_token_s(sum(map(loop.read_s, older))))
    return max(late)


def test_without_a_purse_short_reads_beat_the_bound_on_the_first_token():
    chosen = rules(16, 0.2, 0.25)
    tiny = [Client(prompt=20, answer=1, think_s=0.0)] * 3
    for settings_, beaten in ((chosen, False), (without_a_purse(chosen), True)):
        loop = Loop(settings_)
        loop.go_on([loop.come(1000, 2)], tiny, limit_s=20.0)
        assert (first_token_late_by(loop, chosen) > 1) == beaten


# -- what people are shown ------------------------------------------------------------------------------------------


def shown(rates: Rates | None = None, **named: object) -> dict[str, str]:
    return {line.what: line.formula for line in lines(SchedulerSettings(**named), rates)}


def test_the_bound_is_shown_with_the_settings_in_numbers_and_what_is_measured_by_name():
    told = shown(max_running=1) | shown()
    assert told["one row: done"] == "(own work + that of older equals) / 0.25 + 10 s + chunk + 32 steps"
    assert told["rows: first token"] == "(reads of it and older equals) / 0.125 + (10 s + chunk) / 0.5 + step"
    assert told["rows: longest gap"] == "step + the larger of 1 x step and 0.25 s + slice"
    assert told["no row free: more"] == "4 s + (equals before it / 7, rounded up) x (5 s + 32 steps) + step"
    more = "for itself and each older equal that waits for them: 30 s + the rest of those that hold them"
    turn = "; a turn is at least 10 x as long as pages take to come back for it"
    assert told["few pages: more"] == more + turn
    assert shown(swap_ratio=0.0)["few pages: more"] == more
    assert told["below others"] == "5 s of engine in every 30 s x levels above it"


def test_with_rates_the_bound_is_shown_in_seconds():
    rates = Rates(chunk_s=2.0, slice_s=0.05, step_s=0.1)
    told = shown(rates, max_running=1) | shown(rates)
    assert told["one row: done"] == "(own work + that of older equals) / 0.25 + 15.2 s"
    assert told["rows: first token"] == "(reads of it and older equals) / 0.125 + 24.1 s"
    assert told["rows: longest gap"] == "0.4 s"
    assert told["no row free: more"] == "4.1 s + (equals before it / 7, rounded up) x 8.2 s"


def test_only_promises_that_hold_with_these_settings_are_shown():
    """R12: with one row an answer may wait for a whole read; with several they share each step."""
    rows = {"rows: first token", "rows: longest gap", "no row free: more"}
    always = {"few pages: more", "below others"}
    assert shown(max_running=1).keys() == {"one row: done"} | always
    assert shown(max_running=2).keys() == rows | always


def test_settings_that_keep_no_bound_say_so():
    assert shown(preempt="off").keys() == {"no bound"}
    assert "max_parks" in shown(max_parks=3)["but"]
    assert "but" not in shown()
