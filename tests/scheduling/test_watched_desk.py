"""That the walk's desk finds no fault with what the rules allow: short histories with which it once did.

A room of its own, because the walk draws them only once in thousands of examples.
"""

from __future__ import annotations

from model_engine import Work
from watched_desk import WatchedDesk

from strata.config import SchedulerSettings


def watched(**named: object) -> WatchedDesk:
    chosen = SchedulerSettings(**{"chunk_tokens": 64, "preempt": "slice", "order_share": 0.25, **named})
    return WatchedDesk(chosen, Work(), pages=400, slots=0, finishes_chunks=False)


def reasons(desk: WatchedDesk, seq: int) -> list[str]:
    return [change.reason for change in desk.scheduler.history(seq)]


def test_of_a_chunk_that_was_partly_known_only_the_rest_counts_as_need():
    """R3.2: a read that has 12 tokens left passes one that has 92; counted from its chunk's start it had 48."""
    desk = watched(max_running=1, pass_burst_s=0.02, short_tokens=400)
    desk.submit(130, 1, like=1, alike=70)
    desk.run()
    long = desk.submit(300, 20)
    desk.run(12)
    known = desk.submit(64, 20, like=1, alike=70)
    desk.run(1)
    # One above all takes its place, and two shorter ones spend the purse, so that the long one goes on meanwhile.
    desk.submit(10, 1, priority=1)
    desk.submit(10, 1)
    desk.submit(10, 1)
    assert desk.left[known] == desk.need(known) == 12
    desk.run(until=known)
    assert reasons(desk, long)[2:5] == ["short", "rank", "short"]
    desk.run()


def test_a_row_that_one_decision_fills_is_not_free_for_the_next_move_of_it():
    """R3.2: when somebody leaves, an answer gets the row, and the short read that waits takes the place of another."""
    desk = watched(max_running=3, pass_burst_s=1.0, short_tokens=60, quantum_s=0.5, turn_wait_s=0.4, finish_tokens=0)
    _, parked, last = (submit_and_run(desk, max_tokens=100) for _ in range(3))
    leaves = desk.submit(10, 62)
    while desk.state(leaves) != "decoding":
        desk.run(1)
    desk.run(15)
    assert desk.state(parked) == "parked (decoding)"
    short = desk.submit(10, 2)
    assert desk.state(short) == "queued", "who answers last is short itself by what it has left"
    desk.withdraw(leaves)
    assert (desk.state(parked), desk.state(short)) == ("decoding", "reading")
    assert reasons(desk, last)[-1] == "short"
    desk.run()


def submit_and_run(desk: WatchedDesk, *, max_tokens: int) -> int:
    seq = desk.submit(10, max_tokens)
    desk.run(4)
    return seq
