"""The embedding example runs as it stands."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from trio.testing import MockClock

from strata.testing.scripted import ScriptedEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed.py"


@pytest.fixture
def embed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_short_chat_of_the_example_ends_before_the_long_one(
    embed: ModuleType, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    await embed.main(host=ScriptedEngine(pages=256))
    lines = capsys.readouterr().out.splitlines()
    short, long = [line for line in lines if "tokens read" in line]
    assert short.startswith("short:")
    assert long.startswith("long:")


def test_the_example_runs_by_itself_on_a_real_model(tiny_model_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE, tiny_model_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("tokens read") == 2
