"""The limit of open files, of a process that may change it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from strata.cli.open_files import SPARE_FILES, reachable

CHILD = """
import resource, sys
from strata.cli.open_files import allow_connections
connections, soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow_connections(connections))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def in_a_process(connections: int, soft: int, hard: int) -> list[str]:
    arguments = [sys.executable, "-c", CHILD, *map(str, (connections, soft, hard))]
    return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()


def test_the_soft_limit_rises_to_what_the_connections_need() -> None:
    """B66: a flood of connections meets `max_connections` before it meets the system's limit."""
    assert in_a_process(300, 256, 1000) == ["None", f"{300 + SPARE_FILES} 1000"]


def test_where_the_hard_limit_is_lower_one_line_says_so() -> None:
    said, limits = in_a_process(1024, 256, 512)
    assert said.startswith("max_connections is 1024, but only 512 files may be open here")
    assert limits == "512 512"


def test_a_limit_that_is_enough_stays() -> None:
    assert in_a_process(100, 256, 512) == ["None", "256 512"]


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [(resource.RLIM_INFINITY,) * 3, (256, resource.RLIM_INFINITY, 500), (256, 400, 400), (600, 700, 600)],
)
def test_no_limit_is_more_than_any(soft: int, hard: int, then: int) -> None:
    assert reachable(500, soft=soft, hard=hard) == then
