"""Engines of both kinds for parity tests: a toy, and a tiny llama."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from drive import Drive
from parity import Run, another, llama
from toy_model import ToyModel

from strata.messages import Seq


@pytest.fixture(scope="module", params=["toy", "llama"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Drive]]:
    """Makes cold engines of one kind."""
    with ExitStack() as stack:

        def cold(**named: int) -> Drive:
            path = None if request.param == "toy" else request.getfixturevalue("tiny_model_path")
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
