"""The two models that tests run on: a tiny random one, and the default one, fetched when it is missing.

And no settings but those that a test names; no test fails because it is slow.  What was not tested is said at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fakes
import pytest
from hypothesis import HealthCheck, settings

from strata.models.pull import pull_default
from strata.testing.tiny_model import write_tiny_model

# A machine that does other work is slow, and nothing else is wrong with it.
settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")

GPU = Path(__file__).parent / "gpu"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Here and not beside those tests: the process that reports for several knows no other folder's hooks."""
    asked = {Path(path.partition("::")[0]).resolve() for path in config.args}
    emulated = config.getoption("markexpr") != "gpu"
    if asked & {GPU, *GPU.parents} and (why := fakes.missing(emulated=emulated)):
        terminalreporter.write_line(f"the GPU engine was not tested: {why} (`make gpu-deps`)")


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_the_user() -> Iterator[None]:
    """Whoever runs the tests may have a configuration file; it is none of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATA_CONFIG", os.devnull)
        yield


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    return pull_default()
