"""Memory that the end of a long context needs is taken at the start, and counted there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
from parity import Held

from strata.config import EngineSettings
from strata.engine.budget import Budget, plan
from strata.errors import ConfigError
from strata.gpu.device import Device
from strata.gpu.ops import GpuOps
from strata.models import open_model
from strata.models.architecture import DecodeRow, Model
from strata.models.file import ModelFile
from strata.models.make import make_model
from strata.models.ops import CacheShape
from strata.testing.tiny_model import write_tiny_model

MakeDevice = Callable[..., Device]
Open = Callable[..., AbstractContextManager[Model]]

SPAN_BYTES = 4 * 4 * (16 + 2)
"""Of 256 keys, by four heads of 16 elements and the two numbers beside each."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return open_model(write_tiny_model(tmp_path_factory.mktemp("models") / "long.gguf", context=1 << 16))


@pytest.fixture
def opened(make_device: MakeDevice, file: ModelFile) -> Open:
    """One at a time: a thread's contexts are a stack."""

    @contextmanager
    def open_with(**named: int) -> Iterator[Model]:
        model = make_model(file, GpuOps(make_device, **named))
        try:
            yield model
        finally:
            model.close()

    return open_with


def test_what_the_last_row_of_the_context_needs_is_not_given_to_pages(opened: Open) -> None:
    """Exactly that: where the usual memory is enough nothing more is taken."""
    needed = 256 * SPAN_BYTES

    def budget(**named: int) -> tuple[Budget, int]:
        with opened(**named) as model:
            settings = EngineSettings(page_tokens=16)
            made = plan(model, settings, max_running=8, free_bytes=96 << 20, host_bytes=0)
            return made, model.bytes_per_page(16)

    (usual, page), (less, _) = budget(), budget(parts_bytes=needed - 1)
    assert needed % page == 0
    assert usual.context == less.context == 1 << 16
    assert usual.pages - less.pages == needed // page
    assert budget(parts_bytes=needed)[0] == usual


@pytest.mark.parametrize("named", [{}, {"parts_bytes": SPAN_BYTES}], ids=["usual", "more"])
def test_what_is_taken_at_the_start_is_what_was_counted(fake_folder: Path, opened: Open, named: dict[str, int]) -> None:
    """Beside pages; graphs come later, and the host has its copy of logits.  Emulated memory isn't rounded up."""
    with opened(**named) as model:
        device, rows, context = model._ops._device, 4, 5000
        counted = model.bytes_beside_pages(context, rows) - 4 * rows * model.config.vocab_size
        counted -= rows * model._ops.recorder_bytes(model._most_operations())
        before = device.free_memory()
        model.allocate(3, 16, context=context, rows=rows)
        assert before - device.free_memory() == counted + 3 * model.bytes_per_page(16)


def test_rows_at_the_end_of_the_context_are_decoded_whatever_memory_there_was(opened: Open) -> None:
    """Told, captured and replayed, or in goes; with the same bits."""
    rows = [DecodeRow(Held(range(64)), 5, 1023), DecodeRow(Held(range(64, 128)), 7, 1000)]

    def logits(**named: int) -> list[list[bytes]]:
        with opened(**named) as model:
            model.allocate(128, 16, context=1024, rows=2)
            return [[row.tobytes() for row in model.decode(rows[:count])] for count in (1, 1, 1, 2, 2, 2)]

    usual = logits()
    assert len({*usual[0], *usual[-1]}) == 2
    assert logits(parts_bytes=SPAN_BYTES) == usual


def test_a_context_of_more_pages_than_can_be_told_is_refused_by_name(opened: Open) -> None:
    with opened() as model, pytest.raises(ConfigError, match=r"^page_tokens: 1 cut 1048577 tokens into more pages"):
        model.allocate(1, 1, context=(1 << 20) + 1, rows=1)


def test_a_million_pages_can_be_told(card: GpuOps) -> None:
    """As many as a sequence has where nobody asks for a longer context."""
    cache, length = card.cache(CacheShape(1, 1, 1, 1, 8)), 1 << 20
    card.expect_context(length, 1, cache)
    placed = card.attention.place(cache, [(np.zeros(length, np.int32), length - 1)])
    assert placed.shape.width == length
