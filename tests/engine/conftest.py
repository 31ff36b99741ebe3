"""Engines of all kinds for parity tests: a toy, a tiny llama, and one whose first layer sees a window of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import gguf
import pytest
from drive import Drive
from parity import Run, another, llama
from toy_model import ToyModel

from strata.messages import Seq
from strata.testing.tiny_model import write_tiny_model

PATHS = {"llama": "tiny_model_path", "windows": "windowed_model_path"}


@pytest.fixture(scope="session")
def windowed_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The window ends inside a tile, inside a page, and before the first chunk does."""

    def windows(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(29)
        writer.add_sliding_window_pattern([True, False])

    return write_tiny_model(tmp_path_factory.mktemp("models") / "windowed.gguf", change=windows)


@pytest.fixture(scope="module", params=["toy", "llama", "windows"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Drive]]:
    """Makes cold engines of one kind."""
    with ExitStack() as stack:

        def cold(**named: int) -> Drive:
            path = None if request.param == "toy" else request.getfixturevalue(PATHS[request.param])
            drive = Drive(ToyModel() if path is None else llama(path), **named)
            stack.callback(drive.engine.close)
            return drive

        yield cold


@pytest.fixture(scope="module")
def undisturbed(make: Callable[..., Drive]) -> Run:
    """The first request of a cold engine."""
    return Run(make())


@pytest.fixture(scope="module")
def warm(make: Callable[..., Drive]) -> Drive:
    """An engine that has served others, whose pages and workspaces are full of what they left."""
    drive = make()
    for _ in range(3):
        another(32)(drive, Seq(0))
    return drive
