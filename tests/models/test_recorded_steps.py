"""Decode steps of every family, recorded: the bits of operations told one by one, and the memory that is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_reading import Reader

from strata.models.architecture import Model
from strata.models.decoder import Decoder
from strata.models.file import open_model
from strata.models.ops import Kernels, Recorder

compiled = pytest.importorskip("strata.cpu.compiled", reason="no kernels were compiled here")
runnable = pytest.importorskip("strata.cpu._kernels").sets()

FOLDER = Path(__file__).parents[1] / "data" / "checkpoints"
NAMES = ("llama", "qwen2", "qwen2-windows", "qwen3", "yarn", "gemma3")
LENGTHS = (3, 23, 24, 25, 80)
"""Of sequences that step together: within a window of 24, at its end, and beyond it."""


class Kept(compiled.CompiledOps):
    """Remembers what it recorded, and what was counted for it."""

    def __init__(self, kernels: str) -> None:
        super().__init__(1, kernels)
        self.recorders: list[Recorder] = []
        self.counted = 0

    def recorder(self) -> Recorder:
        self.recorders.append(super().recorder())
        return self.recorders[-1]

    def recorder_bytes(self, operations: int) -> int:
        self.counted = super().recorder_bytes(operations)
        return self.counted


class OneByOne(compiled.CompiledOps):
    def recorder(self) -> None:
        return None


def opened(name: str, ops: compiled.CompiledOps) -> Model:
    file = open_model(FOLDER / name)
    model = Decoder(file.config, file.tensors, ops)
    model.allocate(20, 64, context=512, rows=34)
    return model


@pytest.fixture(params=[(name, kernels) for name in NAMES for kernels in runnable], ids=str)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Model, Model, Kept]]:
    """The same model twice."""
    name, kernels = request.param
    kept = Kept(kernels)
    both = opened(name, kept), opened(name, OneByOne(1, kernels))
    yield *both, kept
    for model in both:
        model.close()


def readers(model: Model) -> list[Reader]:
    made = [Reader(model, list(range(4 * at, 4 * at + 4))) for at in range(len(LENGTHS))]
    for seed, (reader, length) in enumerate(zip(made, LENGTHS, strict=True)):
        reader.read(np.random.default_rng(seed).integers(0, model.config.vocab_size, length).tolist())
    return made


def stepped(model: Model, rows: list[Reader]) -> list[bytes]:
    """Logits and keys and values of each after its likeliest token."""
    logits = model.decode([row.row(int(row.logits.argmax())) for row in rows])
    for row, one in zip(rows, logits, strict=True):
        row.logits = one
        row.position += 1
    return [part for row in rows for part in (row.logits.tobytes(), row.digest().encode())]


def test_a_recorded_step_has_the_bits_of_its_operations_one_by_one(pair: tuple[Model, Model, Kept]) -> None:
    there, here, kept = pair
    others, rows = readers(there), readers(here)
    for count in (5, 5, 1, 3, 5, 1):
        assert stepped(there, others[:count]) == stepped(here, rows[:count])
    assert len(kept.recorders) == 3


def test_what_a_step_records_takes_no_more_memory_than_is_counted(pair: tuple[Model, Model, Kept]) -> None:
    model, _, kept = pair
    before = model.bytes_beside_pages(512, 1)
    assert model.bytes_beside_pages(512, 2) - before > kept.counted > 0
    assert model.bytes_beside_pages(512, 33) - model.bytes_beside_pages(512, 32) < kept.counted
    stepped(model, readers(model))
    [recorder] = kept.recorders
    assert 0 < recorder.__sizeof__() <= kept.counted


def test_steps_of_many_rows_are_told_one_by_one(pair: tuple[Model, Model, Kept]) -> None:
    model, _, kept = pair
    reader = readers(model)[0]
    alone = [model.decode([reader.row(1)])[0].tobytes()]
    kept.recorders.clear()
    many = model.decode([reader.row(1)] * 33)
    assert {logits.tobytes() for logits in many} == set(alone)
    assert not kept.recorders


def test_a_recorder_takes_down_whatever_kernels_do() -> None:
    operations = {name for name in vars(Kernels) if not name.startswith("_")}
    assert "add_norm" in operations
    assert operations < set(vars(compiled.Program))
