"""The credit of reading, and which step counts: two rules on plain values."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine.step import Credit, Steps, allowed
from strata.messages import Seq, Step


def test_credit_that_was_not_used_is_not_kept():
    credit = Credit()
    for _ in range(3):
        credit.decoded(1.0, Step(1, read_share=0.5))
        assert credit.seconds == 1.0


def test_what_was_overdrawn_is_paid_back():
    credit = Credit()
    credit.decoded(1.0, Step(1, read_share=0.5))
    credit.read(3.0)
    assert credit.seconds == -2.0
    for left in (-1.0, 0.0):
        credit.decoded(1.0, Step(1, read_share=0.5))
        assert credit.seconds == left
        assert not credit.allows_a_slice


def test_a_gap_is_the_least_that_a_step_earns():
    credit = Credit()
    credit.decoded(1.0, Step(1, read_share=0.5, gap_s=4.0))
    assert credit.seconds == 4.0


@settings(deadline=None)
@given(
    st.floats(0.05, 0.95),
    st.lists(st.floats(0.001, 1.0), min_size=50, max_size=50),
    st.lists(st.floats(0.001, 1.0), min_size=50, max_size=50),
)
def test_over_any_span_reading_gets_its_share_within_a_slice(share: float, steps: list[float], slices: list[float]):
    """Whatever steps and slices take: the read time is the share of the whole, off by one slice."""
    credit = Credit()
    read = decoded = 0.0
    pieces = iter(slices)
    for seconds in steps:
        credit.decoded(seconds, Step(1, read_share=share))
        decoded += seconds
        while credit.allows_a_slice:
            taken = next(pieces, None)
            if taken is None:
                return
            credit.read(taken)
            read += taken
            assert read <= decoded * share / (1 - share) + max(slices) + 1e-9
        assert read >= decoded * share / (1 - share) - 1e-9


def test_steps_that_come_late_or_twice_are_dropped():
    steps = Steps()
    steps.tell(Step(2))
    steps.tell(Step(1))
    assert steps.take() == Step(2)
    for n in (0, 1, 2):
        steps.tell(Step(n))
        assert steps.waiting is None
    assert steps.current == Step(2)


def test_a_step_lets_each_sequence_run_once():
    assert allowed(Step(1, (Seq(1), Seq(2), Seq(1)), read=Seq(2))) == (Seq(1), Seq(2))
    assert allowed(Step(1, (Seq(1),))) == (Seq(1),)


def test_a_newcomer_has_what_the_step_before_it_earns():
    credit = Credit()
    credit.decoded(1.0, Step(1))
    credit.clear()
    credit.share(Step(2, read_share=0.5, gap_s=3.0))
    assert credit.seconds == 3.0


def test_readers_in_a_row_do_not_hold_up_decoding():
    """What a slice has used is not earned again by whoever reads next; a decode step comes first."""
    credit = Credit()
    credit.decoded(1.0, Step(1))
    credit.clear()
    for _ in range(3):
        credit.share(Step(2, read_share=0.5, gap_s=3.0))
        credit.read(3.5)
        credit.clear()
        credit.share(Step(3, read_share=0.5, gap_s=3.0))
        assert not credit.allows_a_slice
        credit.decoded(1.0, Step(3, gap_s=3.0))
        credit.clear()
