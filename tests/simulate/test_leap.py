"""Where a reader and decoders stand after some time, against counting it out."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.engine.step import Credit
from strata.messages import Step
from strata.simulate.leap import Beside, Leap, beside, decode_alone, read_alone

times = st.integers(1, 4000).map(lambda n: n / 1024)
counts = st.one_of(st.integers(1, 40), st.just(inf))


def counted(pace: Beside, most_slices: float, most_steps: float, seconds: float) -> Leap:
    """By the engine's own credit, one after another; the first in any case."""
    credit, now, done = Credit(), 0.0, []
    credit.seconds = pace.credit
    step = Step(1, read_share=0.5, gap_s=pace.gain)
    slices = steps = 0
    while slices < most_slices and steps < most_steps:
        takes = pace.slice_s if credit.allows_a_slice else pace.step_s
        if done and now + takes > seconds:
            break
        now += takes
        if credit.allows_a_slice:
            credit.read(takes)
            slices += 1
            done.append(("slice", now))
        else:
            # The gap is what is earned here: a share of the step's own time would be less.
            credit.decoded(0.0, step)
            steps += 1
            done.append(("step", now))
    ends = [at for kind, at in done if kind == "step"]
    gaps = [after - before for before, after in pairwise(ends)]
    return Leap(
        slices,
        steps,
        now,
        done[-1][0] == "slice",
        ends[0] if ends else 0.0,
        ends[-1] if ends else 0.0,
        max(gaps, default=0.0),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    slice_s=times,
    step_s=times,
    gain=times,
    credit=st.one_of(st.just(0.0), st.integers(-9000, 4000).map(lambda n: n / 1024)),
    most_slices=counts,
    most_steps=counts,
    seconds=st.one_of(times.map(lambda s: 40 * s), times),
)
def test_a_leap_is_what_counting_gives(
    slice_s: float,
    step_s: float,
    gain: float,
    credit: float,
    most_slices: float,
    most_steps: float,
    seconds: float,
) -> None:
    pace = Beside(slice_s, step_s, gain, credit)
    assert beside(pace, most_slices, most_steps, seconds) == counted(pace, most_slices, most_steps, seconds)


def test_without_a_bound_in_time_the_counts_bound_it() -> None:
    pace = Beside(0.5, 0.25, 0.25, 0.0)
    assert beside(pace, 3, inf, inf) == counted(pace, 3, inf, inf)
    assert beside(pace, inf, 7, inf) == counted(pace, inf, 7, inf)


def test_one_slice_or_step_runs_even_if_it_takes_longer_than_there_is() -> None:
    assert read_alone(0.5, 9, 0.1).slices == 1
    assert decode_alone(0.5, 9, 0.1).steps == 1
    assert read_alone(0.5, 9, 1.1) == Leap(2, 0, 1.0, True)
    assert decode_alone(0.5, 9, 1.1) == Leap(0, 2, 1.0, False, 0.5, 1.0, 0.5)
