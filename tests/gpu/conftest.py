"""The emulated card that these tests run on; without PyCUDA there are none.

`pytest -m gpu` takes the card that is there instead, for the tests that break nothing on purpose.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import fakes
import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What can't run here.  On a real card nothing is built, and no compiler or header needed."""
    ours = collection_path.parent == HERE and collection_path.name.startswith("test_")
    return True if ours and fakes.missing(emulated=not _on_a_card(config)) else None


def _on_a_card(config: pytest.Config) -> bool:
    return str(config.getoption("markexpr")) == "gpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in this folder; those that need an emulated card skip themselves on a real one."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def real_card(pytestconfig: pytest.Config) -> bool:
    return _on_a_card(pytestconfig)


@pytest.fixture(scope="session")
def fake_folder(real_card: bool) -> Path:
    if real_card:
        pytest.skip("on a real card nothing is emulated")
    return fakes.fakes()


@pytest.fixture(scope="session")
def driver(fake_folder: Path) -> ctypes.CDLL:
    """The emulated driver, which this process now has."""
    return fakes.load(fake_folder)


@pytest.fixture(scope="session")
def compiler(fake_folder: Path) -> Path:
    """The emulated compiler's file."""
    return fake_folder / fakes.COMPILER


@pytest.fixture(scope="session")
def find_cublas(real_card: bool, request: pytest.FixtureRequest) -> Callable[[], object]:
    """Finds the emulated library; on a real card the one that is there, if any."""
    from strata.errors import DeviceMissing
    from strata.gpu.cublas import Library

    if not real_card:
        return partial(Library, request.getfixturevalue("fake_folder") / fakes.CUBLAS)
    try:
        Library()
    except DeviceMissing as why:
        pytest.skip(str(why))
    return Library


@pytest.fixture(scope="session")
def make_device(real_card: bool, request: pytest.FixtureRequest) -> Callable[..., object]:
    """Opens a device; `texts`: other kernels."""
    from strata.gpu.cubins import Cubins
    from strata.gpu.device import Device
    from strata.gpu.nvrtc import Nvrtc

    folder = compiler = None
    if not real_card:
        request.getfixturevalue("driver")
        folder = fakes.cubin_folder(request.getfixturevalue("fake_folder"))
        compiler = request.getfixturevalue("compiler")

    def make(texts: Path | None = None) -> Device:
        return Device(Cubins(Nvrtc(compiler), folder, texts))

    return make


@pytest.fixture(scope="module")
def card(make_device: Callable[..., object]) -> Iterator[object]:
    """All operations, for tests that break nothing; what a file's tests allocated lasts until its end."""
    from strata.gpu.ops import GpuOps

    ops = GpuOps(make_device)
    yield ops
    ops.close()
