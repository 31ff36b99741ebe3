"""What an engine says of its slices: in order, nothing left out, and not each by itself.

Knows the loop's own messages; the model and the engine are of no matter here.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from strata.engine.drive import HELD_S, Heartbeats, Pong, Said
from strata.messages import ChunkRead, Progress, Seq, Took


class Line:
    """Whoever hears it, and the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[tuple[float, list[Said]]] = []
        self.heartbeats = Heartbeats(self._say, lambda: self.now)

    def _say(self, facts: Sequence[Said]) -> None:
        self.heard.append((self.now, list(facts)))

    def after(self, seconds: float, *facts: Said) -> None:
        self.now += seconds
        self.heartbeats.add(facts)

    @property
    def all(self) -> list[Said]:
        return [fact for _, facts in self.heard for fact in facts]


def slice_of(number: int) -> Progress:
    return Progress(Seq(1), 0, number, 100, 0.008)


def test_a_steps_first_slice_is_said_at_once_and_the_next_ones_together() -> None:
    line = Line()
    line.after(0, Took(1))
    for number in range(1, 7):
        line.after(HELD_S / 4, slice_of(number))
    assert [len(facts) for _, facts in line.heard] == [1, 1, 4]


def test_the_first_slice_of_a_newer_step_is_said_at_once() -> None:
    """Its reader may be parked from then on."""
    line = Line()
    line.after(0, Took(1))
    line.after(HELD_S / 10, slice_of(1))
    line.after(HELD_S / 10, slice_of(2))
    line.after(0, Took(2))
    line.after(HELD_S / 10, slice_of(3))
    assert line.all == [Took(1), slice_of(1), slice_of(2), Took(2), slice_of(3)]


def test_what_is_no_heartbeat_takes_with_it_those_before_it() -> None:
    line = Line()
    line.after(0, Took(1), slice_of(1))
    line.after(HELD_S / 10, slice_of(2))
    line.after(HELD_S / 10, ChunkRead(Seq(1), 512, 0.008))
    assert line.heard[-1][1] == [slice_of(2), ChunkRead(Seq(1), 512, 0.008)]


FACTS = st.one_of(
    st.builds(Took, st.integers(1, 9)),
    st.builds(slice_of, st.integers(1, 99)),
    st.builds(ChunkRead, st.just(Seq(1)), st.integers(1, 999), st.just(0.008)),
    st.builds(Pong),
)


@given(st.lists(st.tuples(st.floats(0, 2 * HELD_S), st.lists(FACTS, max_size=3)), max_size=30))
def test_all_is_said_in_order_and_nothing_waits_for_longer_than_it_may(
    told: list[tuple[float, list[Said]]],
) -> None:
    line = Line()
    added: list[tuple[float, Said]] = []
    for seconds, facts in told:
        line.after(seconds, *facts)
        added += [(line.now, fact) for fact in facts]
        waits = added[len(line.all) :]
        assert all(isinstance(fact, Progress) for _, fact in waits)
        said_at = line.heard[-1][0] if line.heard else 0.0
        assert not waits or waits[-1][0] - said_at < HELD_S
    line.heartbeats.flush()
    assert line.all == [fact for _, fact in added]
