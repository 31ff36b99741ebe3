"""One server for all tests that only ask it something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Server, served


@pytest.fixture(scope="session")
def default_server(default_model_path: Path) -> Iterator[Server]:
    """The default model under the default policy, on a small grid so that prompts have several chunks."""
    with served("--model", default_model_path, "--chunk-tokens", "128", "--kv-mib", "512") as server:
        yield server
