"""From a file to an engine: what does not fit refuses the start, and no file's numbers make it slow or large."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from strata.config import Settings
from strata.cpu.choice import NUMPY
from strata.cpu.device import open_cpu
from strata.engine.budget import LONGEST_UNASKED, plan
from strata.engine.engine import Engine
from strata.engine.from_file import make_engine
from strata.models import open_model
from strata.models.make import make_model
from strata.testing.tiny_model import write_tiny_model


def test_a_file_with_an_absurd_context_starts_with_what_can_be_served(tmp_path: Path) -> None:
    """B37: the table of rotations follows what is served, not what the file says."""
    file = open_model(write_tiny_model(tmp_path / "tiny.gguf", context=2**31 - 1))
    engine = make_engine(file, Settings.of(max_running=1, kv_mib=16, threads=1))
    assert engine.ready(1).context == 16 * 2**20 // 512 <= LONGEST_UNASKED
    engine.close()


STARVED = """
import resource, sys
from pathlib import Path
from strata.config import Settings
from strata.cpu.device import open_cpu
from strata.engine.from_file import make_engine
from strata.errors import StartFailed
from strata.models import open_model
file = open_model(Path(sys.argv[1]))
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    make_engine(file, Settings.of(threads=1, kv_mib=256))
except StartFailed as error:
    print(error)
"""


def test_memory_that_the_system_does_not_give_refuses_the_start_in_one_line(tiny_model_path: Path) -> None:
    """B37: more seemed to be free than there is, as where a limit is set or another program takes it meanwhile."""
    command = [sys.executable, "-c", STARVED, str(tiny_model_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.count("\n") == 1
    assert said.startswith(f"{tiny_model_path}: there is not enough memory to start")
    assert "context, kv_mib or arena_mib" in said


def test_an_engine_takes_the_memory_that_its_budget_counts(tiny_model_path: Path) -> None:
    """All of it at once: NumPy has no recorder, whose memory a step takes that is the first with its count of rows."""
    settings = Settings.of(threads=1, max_running=200)
    model = make_model(open_model(tiny_model_path), open_cpu(1, kernels=NUMPY))
    budget = plan(model, settings.engine, max_running=200, free_bytes=1 << 30)
    counted = (budget.pages + budget.slots) * model.bytes_per_page(budget.page_tokens) + model.bytes_beside_pages(
        budget.context, 200
    )
    counted += settings.engine.max_half_read * model.bytes_per_workspace(settings.engine.chunk_tokens)
    tracemalloc.start()
    Engine(model, settings.engine, budget)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    model.close()
    logits_of_the_host = 4 * 200 * model.config.vocab_size
    assert taken == pytest.approx(counted - logits_of_the_host, rel=0.01)
