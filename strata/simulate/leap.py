"""How far slices and steps come in a given time, computed and not counted.  Numbers only.

While one reads and others decode, the engine gives reading a credit of `gain` after each decode step, and a slice runs
iff the credit is above 0 (R4).  With all slices alike and all steps alike, the credit after k steps and n slices is
`credit + k gain - n slice_s`, so the n-th slice comes right after the first k steps that leave that above 0.
"""

from __future__ import annotations

from math import ceil, floor, inf

import msgspec


class Beside(msgspec.Struct, frozen=True, gc=False):
    """A reader beside decoders, from a boundary on.  All times in seconds, exact where they are whole ticks."""

    slice_s: float
    step_s: float
    gain: float
    """Credit that each step earns.  Above 0."""
    credit: float

    def steps_before(self, n: int) -> int:
        """Steps that are done when the n-th slice (from 1) begins."""
        return max(0, floor(((n - 1) * self.slice_s - self.credit) / self.gain) + 1)

    def slices_before(self, k: int) -> int:
        """Slices that are done when the k-th step (from 1) begins."""
        return max(0, ceil((self.credit + (k - 1) * self.gain) / self.slice_s))


class Leap(msgspec.Struct, frozen=True, gc=False):
    """So many slices and steps, in `seconds`; the rest is said of the steps, if there are any."""

    slices: int
    steps: int
    seconds: float
    ends_with_slice: bool
    first_step_at: float = 0.0
    """When the first and the last step are done (seconds from the leap's begin)."""
    last_step_at: float = 0.0
    longest_gap_s: float = 0.0


def read_alone(slice_s: float, most: float, seconds: float) -> Leap:
    """Slices only, at most so many, all done within `seconds`; one if none fits."""
    slices = _fit(slice_s, most, seconds)
    return Leap(slices, 0, slices * slice_s, True)


def decode_alone(step_s: float, most: float, seconds: float) -> Leap:
    """Steps only."""
    steps = _fit(step_s, most, seconds)
    return Leap(0, steps, steps * step_s, False, step_s, steps * step_s, step_s if steps > 1 else 0.0)


def beside(pace: Beside, most_slices: float, most_steps: float, seconds: float) -> Leap:
    """Both, by credit, up to whichever bound comes first; one slice or step if none fits."""
    slices, steps = _first_bound(pace, most_slices, most_steps, seconds)
    if slices * pace.slice_s + steps * pace.step_s > seconds:
        slices, steps = _within(pace, seconds)
    return _beside(pace, slices, steps)


def _fit(each_s: float, most: float, seconds: float) -> int:
    fitting = most if seconds == inf else min(most, seconds // each_s)
    return max(1, int(fitting))


def _first_bound(pace: Beside, most_slices: float, most_steps: float, seconds: float) -> tuple[int, int]:
    """How far the counts alone let it come."""
    if most_slices == most_steps == inf:
        # The time bounds it: no more than so many steps.
        most_steps = seconds // pace.step_s + 1
    if most_slices != inf:
        slices = int(most_slices)
        steps = pace.steps_before(slices)
        if steps < most_steps:
            return slices, steps
    steps = int(most_steps)
    return pace.slices_before(steps), steps


def _within(pace: Beside, seconds: float) -> tuple[int, int]:
    """What is done within so many seconds; the first slice or step in any case."""
    round_s = pace.slice_s + pace.step_s * pace.slice_s / pace.gain
    slices = int(seconds / round_s)
    while _slice_ends(pace, slices + 1) <= seconds:
        slices += 1
    while slices and _slice_ends(pace, slices) > seconds:
        slices -= 1
    steps = int((seconds - slices * pace.slice_s) // pace.step_s)
    steps = max(0, min(steps, pace.steps_before(slices + 1)))
    if slices or steps:
        return slices, steps
    return (0, 1) if pace.credit <= 0 else (1, 0)


def _slice_ends(pace: Beside, n: int) -> float:
    return n * pace.slice_s + pace.steps_before(n) * pace.step_s


def _beside(pace: Beside, slices: int, steps: int) -> Leap:
    ends_with_slice = slices > 0 and pace.steps_before(slices) == steps
    seconds = slices * pace.slice_s + steps * pace.step_s
    if not steps:
        return Leap(slices, steps, seconds, ends_with_slice)
    first = pace.slices_before(1) * pace.slice_s + pace.step_s
    last = pace.slices_before(steps) * pace.slice_s + steps * pace.step_s
    gap = pace.step_s + _most_between(pace, steps) * pace.slice_s if steps > 1 else 0.0
    return Leap(slices, steps, seconds, ends_with_slice, first, last, gap)


def _most_between(pace: Beside, steps: int) -> int:
    """The most slices between two of so many steps in a row.

    The counts between steps differ by at most one, but where a debt is still paid off: there are none, or fewer.
    """
    k = 1
    while k < steps and pace.slices_before(k + 1) == 0:
        k += 1
    if k == steps:
        return 0
    first = pace.slices_before(k + 1) - pace.slices_before(k)
    rest = steps - 1 - k
    if not rest:
        return first
    least = floor(pace.gain / pace.slice_s)
    all_least = pace.slices_before(steps) - pace.slices_before(k + 1) == rest * least
    return max(first, least if all_least else least + 1)
