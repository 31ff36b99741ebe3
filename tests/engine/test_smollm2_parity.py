"""A sample of slices and steps of a real model: parked, behind a cached beginning, moved to the arena and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from drive import CHUNK, PAGE, Drive
from parity import (
    DISTURBANCES,
    MOVES,
    Run,
    another,
    cached,
    decoding_differs_from_reading,
    llama,
    same,
    same_from_first_chunk_on,
    shares_and_leaves,
)


@pytest.fixture(scope="module")
def undisturbed(default_model_path: Path) -> Iterator[Run]:
    drive = Drive(llama(default_model_path), pages=60)
    yield Run(drive)
    drive.engine.close()


def test_smollm2_is_parked_without_a_trace(undisturbed: Run):
    places = [1, 31, 64, 89, 91, 94]
    same(Run(undisturbed.drive, dict(zip(places, DISTURBANCES.values(), strict=True))), undisturbed)


def test_smollm2_goes_on_behind_a_cached_beginning(undisturbed: Run):
    """That ends inside a chunk and a tile, and is read by others too."""
    pages = cached(undisturbed.drive, CHUNK + PAGE)
    disturb = {3: another(1), 33: shares_and_leaves}
    same_from_first_chunk_on(Run(undisturbed.drive, disturb, cached=pages), undisturbed)


def test_smollm2_writes_other_bits_than_it_reads(undisturbed: Run):
    decoding_differs_from_reading(undisturbed.drive)


def test_smollm2_is_moved_without_a_trace(undisturbed: Run):
    places = [1, 33, 89, 92]
    same(Run(undisturbed.drive, dict(zip(places, MOVES.values(), strict=True))), undisturbed)
