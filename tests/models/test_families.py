"""What docs/models.md says of families is what there is, and its worked example is the real file."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from strata.errors import ModelError
from strata.models import gemma3
from strata.models.families import FAMILIES, family_of, family_of_checkpoint

DOCS = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_the_table_has_every_family_with_the_names_that_files_give_it() -> None:
    table = [line for line in DOCS.splitlines() if line.startswith("|")]
    for family in FAMILIES.values():
        [row] = [line for line in table if f"| `{family.name}` |" in line]
        assert all(f"`{name}`" in row.split("|")[3] for name in family.model_types)
    assert len(table) == 2 + len(FAMILIES)


def test_the_worked_example_is_a_file_of_about_150_lines() -> None:
    source = inspect.getsource(gemma3)
    assert len(source.splitlines()) <= 150
    for block in DOCS.split("```python\n")[1:3]:
        for line in block.split("```")[0].splitlines():
            assert line in source, line


def test_a_family_is_found_by_its_name_and_by_each_of_its_model_types() -> None:
    for family in FAMILIES.values():
        assert family_of(family.name) is family
        assert all(family_of_checkpoint(name) is family for name in family.model_types)
    with pytest.raises(ModelError, match="gemma3_text are"):
        family_of_checkpoint("gemma3")
