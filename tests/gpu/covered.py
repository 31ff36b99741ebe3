"""Runs the tests of this folder; fails if they do, or if they run less of `strata/gpu` than is asked for.

Lines that only processes of their own run, as what is said where PyCUDA is missing, are not counted as run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import coverage
import pytest

ASKED: Final = 95
"""Of a hundred lines."""


def main() -> int:
    # Nothing of ours has been imported yet: what an import runs counts too.
    watching = coverage.Coverage(data_file=None, source=["strata.gpu"])
    with watching.collect():
        failed = pytest.main([str(Path(__file__).parent), "-q", "-p", "no:cacheprovider"])
    run = watching.report(show_missing=True, skip_covered=True)
    return 1 if failed or run < ASKED else 0


if __name__ == "__main__":
    sys.exit(main())
