"""What an installed package has that no import asks for: the texts of kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lib`, which becomes the wheel beside what is compiled, and the list of what a source package holds."""
    folder = tmp_path_factory.mktemp("packed")
    listed, built = ("egg_info", "--egg-base", folder), ("build_py", "--build-lib", folder / "lib")
    command = [sys.executable, "setup.py", "--quiet", *map(str, (*listed, *built))]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.cu*")}


def test_a_wheel_has_every_kernel_of_the_card_where_it_is_looked_for(packed: Path) -> None:
    inside = packed / "lib" / "strata" / "gpu"
    assert (inside / "cubins.py").exists()
    assert names(inside / "cuda") == names(TREE / "cuda")
    assert len(names(TREE / "cuda")) > 10
    assert (inside / "cuda" / "tensor.cu").read_bytes() == (TREE / "cuda" / "tensor.cu").read_bytes()


def test_a_source_package_has_the_texts_of_all_kernels(packed: Path) -> None:
    listed = set((packed / "strata_serve.egg-info" / "SOURCES.txt").read_text().splitlines())
    texts = [*TREE.glob("cuda/*.cu*"), *TREE.glob("strata/cpu/native/*.[ch]")]
    assert {str(path.relative_to(TREE)) for path in texts} <= listed
