"""The two models that tests run on: a tiny random one, and the default one, fetched when it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.models.pull import pull_default
from strata.testing.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    return pull_default()
