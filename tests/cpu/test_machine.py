"""What the kernel's files say of memory and processors, tried on files of our own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata.cpu.machine import available_bytes, total_bytes, usable_processors

GIB = 2**30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    put(tmp_path / "proc/meminfo", "MemTotal: 33554432 kB\nMemFree: 1 kB\nMemAvailable: 16777216 kB\n")
    put(tmp_path / "proc/self/cgroup", "0::/\n")
    return tmp_path / "proc"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def put(path: Path, text: str | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}")


def test_memory_is_what_the_machine_has_left_where_no_group_limits_it(proc: Path, cgroups: Path) -> None:
    put(cgroups / "memory.max", "max\n")
    put(cgroups / "memory.current", GIB)
    assert available_bytes(proc, cgroups) == 16 * GIB


def test_a_group_of_version_2_limits_memory_and_its_cached_files_count_as_free(proc: Path, cgroups: Path) -> None:
    put(proc / "self/cgroup", "0::/service/strata\n")
    put(cgroups / "service/strata/memory.max", 4 * GIB)
    put(cgroups / "service/strata/memory.current", 3 * GIB)
    put(cgroups / "service/strata/memory.stat", f"anon 5\ninactive_file {GIB}\nactive_file 7\n")
    assert available_bytes(proc, cgroups) == 2 * GIB


def test_a_group_further_out_limits_memory_too(proc: Path, cgroups: Path) -> None:
    put(proc / "self/cgroup", "0::/service/strata\n")
    put(cgroups / "service/strata/memory.max", 4 * GIB)
    put(cgroups / "service/strata/memory.current", 0)
    put(cgroups / "service/memory.max", 3 * GIB)
    put(cgroups / "service/memory.current", 2 * GIB)
    assert available_bytes(proc, cgroups) == GIB


def test_a_group_of_version_1_limits_memory(proc: Path, cgroups: Path) -> None:
    put(proc / "self/cgroup", "4:cpu,cpuacct:/\n3:memory:/job\n")
    put(cgroups / "memory/job/memory.limit_in_bytes", 2 * GIB)
    put(cgroups / "memory/job/memory.usage_in_bytes", GIB)
    assert available_bytes(proc, cgroups) == GIB


def test_a_group_that_is_over_its_limit_has_nothing_left(proc: Path, cgroups: Path) -> None:
    put(cgroups / "memory.max", GIB)
    put(cgroups / "memory.current", 2 * GIB)
    assert available_bytes(proc, cgroups) == 0


def test_memory_is_all_that_there_is_where_no_file_says(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_most_memory_is_a_groups_limit_or_the_machines(proc: Path, cgroups: Path, tmp_path: Path) -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert total_bytes(tmp_path / "none", tmp_path / "none") == whole
    put(cgroups / "memory.max", 5 << 20)
    assert total_bytes(proc, cgroups) == 5 << 20


def test_processors_are_those_that_the_process_may_run_on(proc: Path, cgroups: Path) -> None:
    put(cgroups / "cpu.max", "max 100000\n")
    assert usable_processors(proc, cgroups) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("quota", [50000, 100000])
def test_a_quota_of_time_limits_processors_and_leaves_at_least_one(proc: Path, cgroups: Path, quota: int) -> None:
    put(cgroups / "cpu.max", f"{quota} 100000\n")
    assert usable_processors(proc, cgroups) == 1
    assert usable_processors(proc, cgroups, of=64) == 1


def test_a_quota_of_version_1_limits_processors(proc: Path, cgroups: Path) -> None:
    put(proc / "self/cgroup", "4:cpu,cpuacct:/job\n")
    put(cgroups / "cpu/job/cpu.cfs_quota_us", 100000)
    put(cgroups / "cpu/job/cpu.cfs_period_us", 100000)
    assert usable_processors(proc, cgroups) == 1


def test_no_quota_of_version_1_limits_nothing(proc: Path, cgroups: Path) -> None:
    put(proc / "self/cgroup", "4:cpu:/job\n")
    put(cgroups / "cpu/job/cpu.cfs_quota_us", -1)
    put(cgroups / "cpu/job/cpu.cfs_period_us", 100000)
    assert usable_processors(proc, cgroups) == len(os.sched_getaffinity(0))


def test_without_a_quota_all_that_it_might_run_on_are_usable(tmp_path: Path) -> None:
    assert usable_processors(tmp_path, tmp_path, of=64) == 64
