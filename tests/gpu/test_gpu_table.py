"""The table of kernels says what the `.cu` files say."""

from __future__ import annotations

import re

from strata.gpu.cubins import sources
from strata.gpu.table import KERNELS

DEFINITION = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+)(?:, \d+)?\)\s+(\w+)\(([^)]*)\)')
LETTERS = {"int": "i", "float": "f"}


def written() -> set[tuple[str, str, str, int]]:
    return {
        (path.name, name, "".join(map(letter, arguments.split(","))), int(block))
        for path in sources().glob("*.cu")
        for block, name, arguments in DEFINITION.findall(path.read_text())
    }


def letter(argument: str) -> str:
    kind = argument.strip().removeprefix("const ")
    return "P" if "*" in kind else LETTERS[kind.split()[0]]


def test_every_kernel_is_in_the_table_with_its_arguments_and_its_block() -> None:
    assert {(kernel.file, kernel.name, kernel.arguments, kernel.block) for kernel in KERNELS} == written()
    assert len(KERNELS) == len(written())


def test_every_kernel_file_says_what_it_computes_and_which_versions_were_tried() -> None:
    for path in sources().glob("*.cu"):
        opening = re.split(r"^#include", path.read_text(), maxsplit=1, flags=re.M)[0]
        assert "Grid (" in opening or "grid (" in opening, path.name
        assert "float32 (" in opening, path.name
        assert "Tried: " in opening, path.name
