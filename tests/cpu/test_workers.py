"""Jobs shared out over threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from strata.cpu.workers import Scratch, Workers, aligned


@pytest.fixture
def three() -> Iterator[Workers]:
    workers = Workers(3)
    yield workers
    workers.close()


def helpers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("strata-cpu")]


def test_every_job_is_done_once_and_before_run_returns(three: Workers) -> None:
    done: list[int] = []
    for count in (0, 1, 2, 50):
        done.clear()
        three.run([lambda _, number=number: done.append(number) for number in range(count)])
        assert sorted(done) == list(range(count))


def test_jobs_run_at_the_same_time_on_as_many_threads_as_asked_for(three: Workers) -> None:
    together = threading.Barrier(3, timeout=30)
    three.run([lambda _: together.wait()] * 3)
    assert not together.broken


def test_a_round_does_not_wait_for_a_thread_that_took_no_job(three: Workers) -> None:
    held, go = threading.Event(), threading.Event()

    def hold(_: Scratch) -> None:
        held.set()
        go.wait(30)

    other = threading.Thread(target=three.run, args=([hold, lambda _: None],))
    other.start()
    held.wait(30)
    go.set()
    other.join()
    done: list[int] = []
    for number in range(200):
        three.run([lambda _, number=number: done.append(number)] * 2)
    assert done == sorted([*range(200), *range(200)])


def test_what_a_job_raises_is_raised_by_run_after_the_others_are_done(three: Workers) -> None:
    done: list[int] = []

    def fail(_: Scratch) -> None:
        raise IndexError("no such page")

    with pytest.raises(IndexError, match="no such page"):
        three.run([fail, *[lambda _: done.append(1)] * 20])
    assert len(done) == 20
    three.run([lambda _: done.append(2)] * 2)
    assert done[-2:] == [2, 2]


def test_one_thread_alone_raises_too() -> None:
    def fail(_: Scratch) -> None:
        raise IndexError("no such page")

    with pytest.raises(IndexError, match="no such page"):
        Workers(1).run([fail, fail])


def test_overflow_in_a_job_is_no_warning(three: Workers) -> None:
    big = np.full(4, 1000, np.float32)
    got: list[np.ndarray] = []
    three.run([lambda _: got.append(np.exp(big))] * 8)
    assert np.isinf(got).all()


def test_closing_ends_the_threads_and_closing_twice_does_no_harm() -> None:
    workers = Workers(4)
    assert len(helpers()) == 3
    workers.run([lambda _: None] * 10)
    workers.close()
    workers.close()
    assert helpers() == []


def test_workers_that_are_forgotten_end_their_threads() -> None:
    workers = Workers(2)
    workers.run([lambda _: None] * 10)
    del workers
    gc.collect()
    assert helpers() == []


def test_scratch_arrays_are_kept_by_name_and_shape() -> None:
    scratch = Scratch()
    first = scratch.array("scores", 3, 4)
    assert scratch.array("scores", 3, 4) is first
    assert scratch.array("scores", 4, 3) is not first
    assert scratch.array("values", 3, 4) is not first


def test_arrays_begin_at_a_cache_line() -> None:
    for shape in ((1,), (3, 5), (64, 576)):
        array = aligned(*shape)
        assert array.shape == shape
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
