"""The watchdog bites what is silent for too long, and never an engine that is only slow, or a looker that is late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.engine.watchdog import LOOKS, MARGIN, Watchdog

seconds = st.floats(0, 1e5)


def test_silence_is_too_long_after_the_floor() -> None:
    """B34."""
    dog = Watchdog(30.0)
    assert dog.look_s == pytest.approx(3.0)
    assert [dog.look() for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]


def test_a_word_makes_it_wait_anew() -> None:
    dog = Watchdog(30.0)
    for _ in range(LOOKS):
        assert not dog.look()
    dog.heard()
    assert [dog.look() for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]


@given(floor=st.floats(0.1, 1e4), slices=st.lists(seconds, min_size=1), times=st.floats(0, MARGIN * 0.99))
def test_a_slice_is_not_too_long_that_takes_many_times_the_longest_so_far(
    floor: float, slices: list[float], times: float
) -> None:
    """B34: a slow chunk is not mistaken for a hang, whatever was before it, and whatever the engine's speed."""
    dog = Watchdog(floor)
    for took in slices:
        dog.heard(took)
    silent = max(times * max(slices), floor * 0.99)
    # The looker may have looked right after the last word, too.
    for _ in range(1 + int(silent / dog.look_s)):
        assert not dog.look()


@given(floor=st.floats(0.1, 1e4), slices=st.lists(seconds))
def test_every_silence_ends(floor: float, slices: list[float]) -> None:
    """After what is allowed and one look."""
    dog = Watchdog(floor)
    for took in slices:
        dog.heard(took)
    looks = 1
    while not dog.look():
        looks += 1
    assert (looks - 1) * dog.look_s == pytest.approx(dog.allowed_s)
    assert dog.allowed_s == max(floor, MARGIN * max(slices, default=0.0))
