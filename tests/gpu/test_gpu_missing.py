"""What a card, its driver or a compiler lacks, as errors that say what to do; each in a process of its own.

And what `strata doctor` finds, on a thread of its own: contexts belong to threads.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fakes
import pytest
from fakes import python

from strata.gpu.found import Found, look
from strata.gpu.libraries import older

OPEN = """
from strata.errors import StartError
from strata.gpu.ops import GpuOps
try:
    GpuOps().close()
    print("opened")
except StartError as error:
    print(type(error).__name__, error)
"""


def test_without_a_driver_the_error_says_where_it_comes_from() -> None:
    said = python(OPEN, {"PATH": "/usr/bin:/bin"})
    assert said.startswith("DeviceMissing PyCUDA can't be loaded (libcuda.so.1")
    assert "NVIDIA's driver" in said
    assert said.count("\n") == 1


def test_with_a_pycuda_for_a_newer_driver_the_error_says_so(tmp_path: Path) -> None:
    """Built with the headers of a newer CUDA, it wants what an older driver hasn't."""
    library = tmp_path / fakes.DRIVER
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(library)], check=True)
    said = python(OPEN, {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path)})
    assert "DeviceMissing PyCUDA was built for a newer CUDA than the driver's (" in said
    assert "undefined symbol: cu" in said
    assert "pip install --force-reinstall" in said


def test_without_pycuda_the_error_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['pycuda'] = None" + OPEN
    assert python(code, {"PATH": "/usr/bin:/bin"}).startswith("DeviceMissing PyCUDA is not installed: `pip install")


def test_with_a_driver_that_is_too_old_the_error_says_what_is_needed(fake_folder: Path) -> None:
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_VERSION": "11040"})
    assert "the driver knows CUDA 11.4 and 12.0 is needed" in said


def test_a_compiler_that_is_newer_than_the_driver_is_refused(fake_folder: Path) -> None:
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_VERSION": "12080"})
    assert "the driver knows CUDA 12.8 and NVRTC is of CUDA 13" in said
    assert "or `pip install nvidia-cuda-nvrtc-cu12`" in said


LOADED = """
from strata.gpu.cublas import Library
from strata.gpu.found import look
from strata.gpu.ops import open_device
device = open_device()
print(device._cubins.major, Library(known=device.cuda[0]).version[0])
device.close()
found = look()
print(found.card, found.compiler, found.cublas, sep="; ")
"""


@pytest.fixture
def for_twelve(fake_folder: Path, tmp_path: Path) -> Path:
    """A folder with libraries of CUDA 12."""
    for name in (fakes.COMPILER, fakes.CUBLAS):
        shutil.copy(fake_folder / name, (tmp_path / name).with_suffix(".12"))
    return tmp_path


@pytest.mark.parametrize("layout", ["the system's", "a wheel's"])
@pytest.mark.parametrize(("driver", "version"), [("12080", 12), ("13000", 13)])
def test_of_libraries_of_two_versions_the_newest_is_taken_that_the_driver_can_use(
    fake_folder: Path, for_twelve: Path, driver: str, version: int, layout: str
) -> None:
    """A start that would be refused with the newest of all; of the driver's own versions the newer one."""
    environ = {**fakes.environ(fake_folder), "FAKECUDA_VERSION": driver}
    if layout == "the system's":
        environ["LD_LIBRARY_PATH"] += f":{for_twelve}"
    else:
        (for_twelve / "nvidia" / "cu12").mkdir(parents=True)
        (for_twelve / "nvidia" / "cu12" / "lib").symlink_to(for_twelve)
        environ["PYTHONPATH"] = str(for_twelve)
    loaded, looked = python(LOADED, environ).splitlines()
    assert loaded == f"{version} {version}"
    assert looked == f"emulated, sm_90, 1,024 MiB free; NVRTC of CUDA {version}.9000; cuBLAS {version}.9"


def test_a_wheels_library_that_cannot_be_loaded_is_a_thing_to_install_anew(fake_folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "nvidia" / "cu14" / "lib" / "libnvrtc.so.14"
    library.parent.mkdir(parents=True)
    library.write_text("this is no library")
    environ = {**fakes.environ(fake_folder), "FAKECUDA_VERSION": "14000", "PYTHONPATH": str(tmp_path)}
    said = python(OPEN, environ)
    assert said.startswith("DeviceMissing NVRTC can't be loaded (")
    assert said.endswith("): `pip install '.[cuda]'` anew\n")


def test_a_library_for_an_older_driver_is_named_as_it_is_to_be_had() -> None:
    """Wheels for CUDA 12 have names of their own."""
    assert older("nvidia-cublas", 12) == "`pip install nvidia-cublas-cu12`"
    assert older("nvidia-cublas", 13) == "`pip install nvidia-cublas==13.*`"


def test_without_a_card_the_error_says_where_to_look(fake_folder: Path) -> None:
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_DEVICES": "0"})
    assert "there is no CUDA card that can be used" in said
    assert "nvidia-smi" in said


def test_a_card_that_is_too_old_is_refused_with_what_is_needed(fake_folder: Path) -> None:
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_CAPABILITY": "70"})
    assert said == "DeviceMissing the card emulated (sm_70) is too old: compute capability 7.5 is needed\n"


def test_a_card_that_another_program_has_for_itself_is_said_to_be_no_usable_one(fake_folder: Path) -> None:
    """CUDA_ERROR_DEVICE_UNAVAILABLE."""
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_CONTEXT": "46"})
    assert said.startswith("DeviceMissing the card emulated can't be used (")
    assert said.endswith("see `nvidia-smi`\n")


@pytest.mark.parametrize(("name", "what"), [("CONTEXT", "open a context"), ("STREAM", "make a stream")])
def test_a_card_that_others_have_filled_is_out_of_memory_before_anything_is_allocated(
    fake_folder: Path, name: str, what: str
) -> None:
    """And the process ends as any other: PyCUDA would end it by SIGABRT if a context were left."""
    code = """
from strata.errors import OutOfDeviceMemory
from strata.gpu.ops import GpuOps
try:
    GpuOps()
except OutOfDeviceMemory as error:
    print(error)
"""
    said = python(code, {**fakes.environ(fake_folder), f"FAKECUDA_{name}": "2"})
    assert said == f"the device emulated has no memory left to {what}\n"


def test_numbers_that_the_card_does_not_have_are_refused_by_name(fake_folder: Path) -> None:
    code = """
from strata.errors import ConfigError
from strata.gpu.ops import GpuOps
for numbers in ("f16", "bf16"):
    try:
        ops = GpuOps(activations=numbers)
        print(ops.device)
        ops.close()
    except ConfigError as error:
        print(error)
"""
    said = python(code, {**fakes.environ(fake_folder), "FAKECUDA_CAPABILITY": "75"})
    assert said.splitlines() == [
        "cuda (emulated, sm_75, f16)",
        "activations: emulated (sm_75) has no bf16: choose f16 or f32",
    ]


@pytest.fixture
def found(driver: ctypes.CDLL, compiler: Path, fake_folder: Path) -> Callable[..., Found]:
    """What is found with this cuBLAS."""

    def find(cublas: Path = fake_folder / fakes.CUBLAS) -> Found:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(look, compiler, cublas).result()

    return find


def test_what_there_is_is_found_and_the_card_is_left_as_it_was(found: Callable[..., Found]) -> None:
    first = found()
    assert first.card is not None
    assert first.card.startswith("emulated, sm_90, ")
    assert (first.compiler, first.cublas) == ("NVRTC of CUDA 13.9000", "cuBLAS 13.9")
    assert (first.problem, first.no_cublas, first.no_bf16) == (None, None, None)
    assert found() == first


def test_a_cublas_that_cannot_be_used_leaves_the_card_usable(
    found: Callable[..., Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = found(tmp_path / "libcublas.so.13")
    assert (none.problem, none.cublas) == (None, None)
    assert str(none.no_cublas).startswith("cuBLAS can't be loaded (")
    monkeypatch.setenv("FAKECUBLAS_VERSION", "1109")
    assert str(found().no_cublas).startswith("cuBLAS 11.9 is too old, 12.0 is needed")


def test_what_a_card_is_too_old_for_is_found(found: Callable[..., Found], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "75")
    assert (found().problem, found().no_bf16) == (None, "emulated (sm_75) has no bf16: choose f16 or f32")
    monkeypatch.setenv("FAKECUDA_CAPABILITY", "70")
    older = found()
    assert (older.card, older.compiler) == (None, "NVRTC of CUDA 13.9000")
    assert str(older.problem).endswith("is too old: compute capability 7.5 is needed")


def test_where_all_is_missing_what_is_found_is_what_a_start_says() -> None:
    """PyCUDA: that NVRTC is missing too doesn't hide it."""
    nothing = "import sys; sys.modules.update(pycuda=None, nvidia=None)\n"
    code = f"from strata.gpu.found import look\nprint(look().compiler, look().problem){OPEN}"
    said = python(nothing + code, {"PATH": "/usr/bin:/bin"}).splitlines()
    assert said[0].startswith("None PyCUDA is not installed: `pip install")
    assert said[1] == said[0].replace("None", "DeviceMissing", 1)
