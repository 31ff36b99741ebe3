"""Ctrl-C before and after a command runs: an end without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strata.__main__ import INTERRUPTED
from strata.cli import codes

ROOT = Path(__file__).parents[2]

COMES_AS_IT_IS_IMPORTED = """
class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            _signal.raise_signal(_signal.SIGINT)

sys.meta_path.insert(0, AtImport())
from strata.__main__ import main
print("nothing came")
"""

COMES_AS_IT_SAYS_WHY_IT_ENDS = """
class Said:
    def write(self, text):
        _signal.raise_signal(_signal.SIGINT)

    def flush(self):
        pass

from strata.__main__ import main
sys.argv[1:] = ["no-such-command"]
sys.stderr = Said()
main()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an interpreter that imports nothing by itself, and heeds Ctrl-C however the tests were started."""
    begin = (
        "import _signal, sys\n"
        "_signal.signal(_signal.SIGINT, _signal.default_int_handler)\n"
        f"sys.path[:0] = [{str(ROOT)!r}, *{[path for path in sys.path if path]!r}]\n"
    )
    command = [sys.executable, "-S", "-c", begin + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_package_itself_imports_nothing() -> None:
    """So there is next to no time in which Ctrl-C would find nobody."""
    done = run("before = set(sys.modules)\nimport strata\nprint(*set(sys.modules) - before)")
    assert done.stderr == ""
    assert set(done.stdout.split()) - {"__future__"} == {"strata", "strata.lazily"}


@pytest.mark.parametrize(
    ("program", "arguments"), [(COMES_AS_IT_IS_IMPORTED, ["signal"]), (COMES_AS_IT_SAYS_WHY_IT_ENDS, [])]
)
def test_interrupted_before_or_after_the_command_it_ends_without_a_traceback(
    program: str, arguments: list[str]
) -> None:
    """B41: by the same code."""
    done = run(program, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


def test_a_command_that_could_not_look_it_up_ends_with_the_same_code() -> None:
    assert INTERRUPTED == codes.INTERRUPTED == 128 + signal.SIGINT
