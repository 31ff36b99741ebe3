"""A Gemma 3, of layers that see a window and one that sees all: whatever happens between, its bits stay."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from drive import CHUNK, PAGE, Drive
from parity import MOVES, Run, another, cached, llama, same, same_from_first_chunk_on

GGUF = Path(__file__).parents[1] / "data" / "checkpoints" / "gemma3.gguf"


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    """Its index may be written beside a copy."""
    drive = Drive(llama(Path(shutil.copy(GGUF, tmp_path_factory.mktemp("models")))))
    yield drive
    drive.engine.close()


@pytest.fixture(scope="module")
def undisturbed(drive: Drive) -> Run:
    return Run(drive)


def test_a_park_after_every_slice_and_step_changes_no_bit(drive: Drive, undisturbed: Run):
    """B54"""
    same(Run(drive, dict.fromkeys(range(1, len(undisturbed.prints) + 1), another(1))), undisturbed)


def test_a_move_to_the_arena_after_every_slice_and_step_changes_no_bit(drive: Drive, undisturbed: Run):
    move = MOVES["its_pages_are_used_meanwhile"]
    same(Run(drive, dict.fromkeys(range(1, len(undisturbed.prints) + 1, 3), move)), undisturbed)


@pytest.mark.parametrize("known", [PAGE, CHUNK, CHUNK + PAGE])
def test_a_hit_changes_no_bit(drive: Drive, undisturbed: Run, known: int):
    same_from_first_chunk_on(Run(drive, cached=cached(drive, known)), undisturbed)


def test_what_an_engine_before_has_written_is_repeated_bit_for_bit(drive: Drive, undisturbed: Run):
    """B31"""
    run = Run(drive, written=undisturbed.tokens[:3])
    assert run.tokens == undisturbed.tokens[3:]
    assert run.prints == undisturbed.prints
