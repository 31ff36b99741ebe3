"""R12: waiting has a bound that no arrival pattern beats, computed from the settings and the engine's rates."""

from __future__ import annotations

from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from model_engine import Desk, Work

from strata.config import SchedulerSettings
from strata.messages import Seq

WORK = Work(chunk_tokens=64, slices=4, token_s=0.001, step_s=0.02)
FINISH = 4


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


def rules(rows: int, burst_s: float, share: float) -> SchedulerSettings:
    return SchedulerSettings(
        max_running=rows,
        chunk_tokens=WORK.chunk_tokens,
        pass_burst_s=burst_s,
        order_share=share,
        finish_tokens=FINISH,
        decode_gap_s=0.05,
    )


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


def late_by(loop: Loop, *, burst_s: float, share: float) -> float:
    """By how much the worst of all that ended, with one row, missed its bound (seconds; below 0: none did)."""
    overrun = WORK.read_s(WORK.chunk_tokens) + FINISH * WORK.step_s
    return max(
        end.figures.total_s - (sum(map(loop.alone_s, loop.older[seq])) / share + 2 * burst_s + overrun)
        for seq, end in loop.ended.items()
    )


def one_row(burst_s: float, share: float, prompt: int, answer: int, others: list[Client], limit_s: float) -> Loop:
    loop = Loop(rules(1, burst_s, share))
    first = loop.come(prompt, answer)
    loop.go_on([first], others, limit_s)
    if first not in loop.ended:
        loop.withdraw(first)
    return loop


@settings(max_examples=25, deadline=None)
@given(
    burst_s=st.sampled_from([0.0, 0.2, 1.0]),
    share=st.sampled_from([0.25, 0.5]),
    prompt=st.sampled_from([65, 300, 1000]),
    answer=st.sampled_from([1, 40]),
    others=st.lists(clients, min_size=1, max_size=4),
)
def test_with_one_row_no_arrivals_beat_the_bound(
    burst_s: float, share: float, prompt: int, answer: int, others: list[Client]
):
    """B09: what comes after you costs you at most 1/order_share of what was before you, plus constants."""
    loop = one_row(burst_s, share, prompt, answer, others, limit_s=30.0)
    assert late_by(loop, burst_s=burst_s, share=share) <= 1e-6


def test_without_a_purse_the_same_arrivals_beat_the_bound():
    """The bound's test can fail: a purse that is never spent lets the small ones pass for ever."""
    tiny = [Client(prompt=10, answer=3, think_s=0.0)] * 3
    kept = one_row(0.2, 0.25, 1000, 40, tiny, limit_s=30.0)
    assert late_by(kept, burst_s=0.2, share=0.25) <= 0
    lost = one_row(80_000.0, 0.25, 1000, 40, tiny, limit_s=30.0)
    assert late_by(lost, burst_s=0.2, share=0.25) > 1


def test_who_stays_oldest_gets_its_share_of_the_engine():
    """B09: and the short ones wait for little beside it."""
    burst_s, share = 0.2, 0.25
    loop = one_row(burst_s, share, 3000, 4, [Client(prompt=10, answer=3, think_s=0.0)] * 3, limit_s=60.0)
    figures = loop.ended[Seq(1)].figures
    overrun = WORK.read_s(WORK.chunk_tokens) + FINISH * WORK.step_s
    assert figures.engine_s >= share * (figures.total_s - 2 * burst_s - overrun)
    assert figures.parks["short"] > 10


@settings(max_examples=12, deadline=None)
@given(
    share=st.sampled_from([0.25, 0.5]),
    prompts=st.lists(st.sampled_from([65, 300, 1000]), min_size=1, max_size=2),
    others=st.lists(clients, min_size=1, max_size=3),
)
def test_with_a_row_for_everybody_first_tokens_and_gaps_keep_their_bounds(
    share: float, prompts: list[int], others: list[Client]
):
    """B13: with arrivals that never stop."""
    burst_s, gap_s, read_share = 0.2, 0.05, 0.5
    loop = Loop(rules(16, burst_s, share))
    loop.go_on([loop.come(prompt, 30) for prompt in prompts], others, limit_s=10.0)
    chunk_s, slice_s = WORK.read_s(WORK.chunk_tokens), WORK.slice_s(WORK.chunk_tokens)
    longest_gap = WORK.step_s + max(WORK.step_s * read_share / (1 - read_share), gap_s) + slice_s
    for seq, end in loop.ended.items():
        bound = (sum(map(loop.read_s, loop.older[seq])) / share + 2 * burst_s + chunk_s) / read_share + WORK.step_s
        assert end.figures.ttft_s is not None
        assert end.figures.ttft_s <= bound + 1e-6
        assert end.figures.longest_gap_s <= longest_gap + 1e-6
