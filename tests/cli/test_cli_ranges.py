"""Numbers that a flag takes: finite ones, between their ends."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from strata.cli import cli


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "much"])
@pytest.mark.parametrize(
    ("flag", "command"),
    [
        ("--per-s", ["simulate", "--generate", "mixed", "--requests", "3", "--per-s"]),
        ("--rates", ["doctor", "--rates", "0.6", "0.02"]),
        ("--every", ["inspect", "--every"]),
        ("--temperature", ["chat", "--temperature"]),
        ("--top-p", ["chat", "--top-p"]),
    ],
)
def test_what_is_no_finite_number_in_range_is_refused_by_the_flags_name(
    flag: str, command: list[str], number: str
) -> None:
    result = CliRunner().invoke(cli, [*command, number])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}'" in result.output
