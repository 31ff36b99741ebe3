"""What this process may use of the machine: memory and processors, as the kernel and its control groups say.

Knows Linux's files; nothing of what the memory is for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_LIMITS = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}
"""The file of a group's limit, and that of what it has used: version 2, version 1."""


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Memory that can be taken without pushing anything out: the least that the machine and any of our groups has left.

    What a group's files in the page cache hold counts as free, as it does in `MemAvailable`.  Where nobody says (not
    Linux) it is all the memory that the machine has.
    """
    machine = [*_machine_left(proc)] or [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    groups = [left for group in _groups(proc, cgroups) for left in _group_left(group)]
    return max(0, min(machine + groups))


def total_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Memory that this process could have at most: the machine's, less if one of our groups has a smaller limit."""
    limits = [_number(group / name) for group in _groups(proc, cgroups) for name in _LIMITS]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *(n for n in limits if n is not None)])


def usable_processors(proc: Path = _PROC, cgroups: Path = _CGROUPS, *, of: int | None = None) -> int:
    """How many processors' time this process can have: those it may run on, less if its group has a smaller quota.

    `of`: on so many it might run.
    """
    allowed = of or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quotas = [quota for group in _groups(proc, cgroups) for quota in _group_quota(group)]
    return max(1, min([allowed, *quotas]))


def _machine_left(proc: Path) -> Iterator[int]:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of our groups, version 2 and version 1, innermost first; a limit of any of them holds."""
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        for root in [cgroups] if not controllers else [cgroups / name for name in controllers.split(",")]:
            inside = root / path.strip("/")
            yield from (inside, *(parent for parent in inside.parents if parent == root or root in parent.parents))


def _group_left(group: Path) -> Iterator[int]:
    """docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html"""
    for limit_name, used_name in _LIMITS.items():
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None:
            yield limit - used + _cached(group)


def _cached(group: Path) -> int:
    """The part of the page cache that the kernel gives up first."""
    return sum(int(line.split()[1]) for line in _lines(group / "memory.stat") if line.startswith("inactive_file "))


def _group_quota(group: Path) -> Iterator[int]:
    for line in _lines(group / "cpu.max"):
        quota, period = line.split()
        if quota != "max":
            yield max(1, int(quota) // int(period))
    quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    if quota_us is not None and period_us is not None and quota_us > 0:
        yield max(1, quota_us // period_us)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The one number in a file; None where the file isn't there, or says `max`."""
    lines = _lines(path)
    try:
        return int(lines[0])
    except (IndexError, ValueError):
        return None
