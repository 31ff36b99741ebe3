"""The device as a whole: what it changes in the process, it puts back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from strata.cpu.ops import CpuOps


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with threadpool_limits(2, user_api="blas"):
        yield


def test_blas_has_its_threads_again_when_the_last_device_is_closed() -> None:
    first, second = CpuOps(1), CpuOps(1)
    assert blas_threads() == {1}
    first.close()
    first.close()
    assert blas_threads() == {1}
    second.close()
    assert blas_threads() == {2}


def test_a_device_that_is_forgotten_gives_the_threads_back_too() -> None:
    ops = CpuOps(1)
    assert blas_threads() == {1}
    del ops
    assert blas_threads() == {2}


def test_what_others_set_between_two_devices_is_what_comes_back() -> None:
    CpuOps(1).close()
    with threadpool_limits(1, user_api="blas"):
        CpuOps(1).close()
        assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_slices_hold_fewer_tiles_far_into_a_prompt_and_never_more_than_at_its_start() -> None:
    for threads in (1, 2):
        ops = CpuOps(threads)
        tiles = [ops.slice_tiles(position) for position in range(0, 10000, ops.tile)]
        ops.close()
        assert tiles == sorted(tiles, reverse=True)
        assert (tiles[0], tiles[-1]) == (2, 1)
