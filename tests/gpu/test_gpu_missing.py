"""What a card, its driver or a compiler lacks, as errors that say what to do; each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest
from fakes import python

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


def test_without_pycuda_the_error_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['pycuda'] = None" + OPEN
    assert python(code, {"PATH": "/usr/bin:/bin"}).startswith("DeviceMissing PyCUDA is not installed: `pip install")


def test_with_a_driver_that_is_too_old_the_error_says_what_is_needed(fake_folder: Path) -> None:
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_VERSION": "11040"})
    assert "the driver knows CUDA 11.4 and 12.0 is needed" in said


def test_a_compiler_that_is_newer_than_the_driver_is_refused(fake_folder: Path) -> None:
    said = python(OPEN, {**fakes.environ(fake_folder), "FAKECUDA_VERSION": "12080"})
    assert "the driver knows CUDA 12.8 and NVRTC is of CUDA 13" in said
    assert "or `pip uninstall nvidia-cuda-nvrtc` and `pip install nvidia-cuda-nvrtc-cu12`" in said


def test_a_library_for_an_older_driver_is_named_as_it_is_to_be_had() -> None:
    """Wheels for CUDA 12 have names of their own."""
    assert older("nvidia-cublas", 12) == "`pip uninstall nvidia-cublas` and `pip install nvidia-cublas-cu12`"
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
