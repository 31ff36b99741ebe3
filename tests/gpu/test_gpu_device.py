"""The device through the real PyCUDA: order, memory, and each error as a type that says what to do."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import fakes
import numpy as np
import pytest
from attrs import evolve
from fakes import python

from strata.errors import DeviceFault, OutOfDeviceMemory
from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.cubins import Cubins, cubin_cache, sources
from strata.gpu.device import Device
from strata.gpu.nvrtc import NVRTC, Nvrtc
from strata.gpu.ops import GpuOps
from strata.gpu.staging import HALF, Staging

MakeDevice = Callable[..., Device]


@pytest.fixture
def device(make_device: MakeDevice) -> Iterator[Device]:
    opened = make_device()
    yield opened
    opened.close()


@pytest.fixture
def faulty(driver: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that makes the next launch fail with the number in it; healed afterwards."""
    monkeypatch.setenv("FAKECUDA_FAULT", str(tmp_path / "fault"))
    yield tmp_path / "fault"
    driver.fakecuda_heal()


# -- order --------------------------------------------------------------------------------------------------------


def test_what_is_uploaded_is_there_for_what_comes_after(device: Device) -> None:
    """The emulated stream does nothing before somebody waits: an order that is not said would show."""
    pinned = device.pinned(16).view(np.int32)
    pinned[:] = [1, 2, 3, 4]
    pointer, out = device.alloc(16), np.zeros(4, np.int32)
    device.upload(pointer, pinned)
    device.download(pointer, out)
    assert out.tolist() == [1, 2, 3, 4]
    device.zero(pointer, 8)
    device.download(pointer, out)
    assert out.tolist() == [0, 0, 3, 4]


def test_a_copy_that_goes_beside_comes_after_what_was_told_before(device: Device) -> None:
    """Whoever waits for its stream alone sees it done."""
    adding, pinned = Adding(device), device.pinned(32).view(np.float32)
    adding.double()
    device.fetch_beside(adding.pointer, pinned)
    adding.double()
    device._beside.synchronize()
    assert pinned.tolist() == [2.0 * at for at in range(8)]
    pinned[:] = 5
    device.upload_beside(adding.pointer, pinned)
    device.meet()
    adding.double()
    assert adding.numbers() == [10.0] * 8


def test_memory_is_not_a_number_until_it_is_written(device: Device) -> None:
    out = np.zeros(4, np.float32)
    device.download(device.alloc(16), out)
    assert np.isnan(out).all()


def test_tables_that_fill_the_staging_again_and_again_all_arrive(device: Device) -> None:
    """A half that was filled again before its copies were done would have the later numbers."""
    staging = Staging(device)
    length = 300_000
    tables = [tuple(range(at, at + length)) for at in range(9)]
    pointers = [staging.put(table) for table in tables[:3]]
    seen = [np.zeros(length, np.int32) for _ in pointers]
    for pointer, out in zip(pointers, seen, strict=True):
        device.download(pointer, out)
    assert [out.tolist() for out in seen] == [list(table) for table in tables[:3]]
    for numbers in tables:
        out = np.zeros(length, np.int32)
        pointer = staging.put(numbers)
        assert staging.put(numbers) == pointer
        device.download(pointer, out)
        assert out.tolist() == list(numbers)


def test_a_table_that_is_too_long_for_the_staging_is_refused(device: Device) -> None:
    with pytest.raises(ValueError, match="longer than"):
        Staging(device).put(tuple(range(HALF + 1)))


def test_a_view_of_rows_and_columns_points_at_its_first_number() -> None:
    array = DeviceArray(pointer=1000, rows=5, columns=10, stride=10)
    assert array[2:4] == DeviceArray(1080, 2, 10, 10)
    assert array[:, 3:7] == DeviceArray(1012, 5, 4, 10)
    assert array[1:][1:2, 2:5][:, 1:] == DeviceArray(1092, 1, 2, 10)
    assert len(array[4:9]) == 1


def test_columns_of_wider_rows_are_read_row_by_row(card: GpuOps) -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert card.numbers(card.stored(numbers)[:, 1:3]).tolist() == numbers[:, 1:3].tolist()


# -- graphs -------------------------------------------------------------------------------------------------------


class Adding:
    """Eight numbers on the card that a launch doubles."""

    def __init__(self, device: Device) -> None:
        self.device, self.pointer = device, device.alloc(32)
        self.kernel = device.load(table.ADD_VECTOR)
        device.store(self.pointer, np.arange(8, dtype=np.float32))

    def double(self) -> None:
        self.device.launch(self.kernel, (1, 1), self.pointer, 8, self.pointer, 8)

    def numbers(self) -> list[float]:
        out = np.empty(8, np.float32)
        self.device.download(self.pointer, out)
        return out.tolist()


def test_what_a_graph_took_down_is_done_whenever_it_is_replayed_and_not_before(device: Device) -> None:
    adding = Adding(device)
    graph = device.capture(lambda: [adding.double() for _ in range(2)] and None)
    assert adding.numbers()[7] == 7
    device.replay(graph)
    device.replay(graph)
    assert adding.numbers() == [16.0 * at for at in range(8)]
    device.forget(graph)
    adding.double()
    assert adding.numbers()[1] == 32


def test_what_is_not_allowed_while_a_graph_is_captured_is_a_fault_and_the_stream_goes_on(device: Device) -> None:
    adding = Adding(device)
    for forbidden in (lambda: device.alloc(16), device.synchronize, lambda: device.load(table.NORM)):
        with pytest.raises(DeviceFault):
            device.capture(forbidden)
    adding.double()
    assert adding.numbers()[1] == 2


def test_a_graph_that_there_is_no_memory_for_says_so(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKECUDA_GRAPH", "1")
    adding = Adding(device)
    with pytest.raises(OutOfDeviceMemory, match="cuGraphInstantiateWithFlags failed: out of memory"):
        device.capture(lambda: [adding.double() for _ in range(2)] and None)


def test_a_fault_while_a_graph_runs_is_seen_and_the_device_can_be_closed(make_device: MakeDevice, faulty: Path) -> None:
    device = make_device()
    graph = device.capture(Adding(device).double)
    faulty.write_text("700")
    device.replay(graph)
    with pytest.raises(DeviceFault, match="could not compute"):
        device.synchronize()
    with pytest.raises(DeviceFault, match="cuGraphLaunch failed: an illegal memory access"):
        device.replay(graph)
    device.close()


# -- faults -------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_with_both_sizes(device: Device) -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"allocate 2,048\.0 MiB \([\d,]+\.\d MiB are free\)"):
        device.alloc(2 << 30)
    device.alloc(1 << 10)


def launch_something(device: Device) -> None:
    kernel = device.load(table.NORM)
    pointer = device.alloc(64)
    device.zero(pointer, 64)
    device.launch(kernel, (1, 1), pointer, 8, pointer, pointer, 8, 8, 1e-5)


@pytest.mark.parametrize("number", [700, 719])
def test_a_kernel_that_fails_is_a_fault_of_the_device_and_nothing_works_after_it(
    make_device: MakeDevice, faulty: Path, number: int
) -> None:
    """And it can be closed all the same."""
    device = make_device()
    launch_something(device)
    device.synchronize()
    faulty.write_text(str(number))
    launch_something(device)
    with pytest.raises(DeviceFault, match="could not compute"):
        device.synchronize()
    faulty.unlink()
    with pytest.raises(DeviceFault):
        device.zero(0, 0)
    with pytest.raises(DeviceFault):
        device.free_memory()
    device.close()
    device.close()


def test_out_of_memory_in_the_middle_is_a_fault_that_says_so(make_device: MakeDevice, faulty: Path) -> None:
    device = make_device()
    faulty.write_text("2")
    launch_something(device)
    with pytest.raises(OutOfDeviceMemory, match="no memory left to compute"):
        device.synchronize()
    device.close()


def test_memory_that_cannot_be_pinned_is_refused_with_its_size(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKECUDA_PINNED", "1000")
    with pytest.raises(OutOfDeviceMemory, match=r"pin 2\.0 MiB of the host's memory"):
        device.pinned(2 << 20)


def test_arguments_that_are_not_those_of_the_kernel_are_refused(
    device: Device, capfd: pytest.CaptureFixture[str]
) -> None:
    kernel = device.load(evolve(table.NORM, arguments="PP"))
    with pytest.raises(DeviceFault, match="could not run rms_norm"):
        device.launch(kernel, (1, 1), 0, 0)
    assert "rms_norm takes 44 bytes of arguments (PiPPiif), not 16" in capfd.readouterr().err


def test_a_kernel_that_there_is_not_is_named(device: Device) -> None:
    with pytest.raises(DeviceFault, match="find the kernel nothing"):
        device.load(evolve(table.NORM, name="nothing"))


def test_use_from_another_thread_is_refused(device: Device) -> None:
    errors: list[Exception] = []

    def use() -> None:
        try:
            device.alloc(16)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert isinstance(errors[0], DeviceFault)


def test_operations_that_cannot_all_be_had_leave_no_device_open(
    driver: ctypes.CDLL, make_device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_MEMORY", str(20 << 20))
    opened: list[Device] = []

    def make() -> Device:
        opened.append(make_device())
        return opened[0]

    with pytest.raises(OutOfDeviceMemory, match=r"allocate \d+\.0 MiB"):
        GpuOps(make)
    with pytest.raises(AttributeError):
        opened[0].synchronize()


# -- the compiler -------------------------------------------------------------------------------------------------


def test_a_kernel_file_that_is_wrong_is_refused_in_the_compilers_words(make_device: MakeDevice, tmp_path: Path) -> None:
    (tmp_path / "norm.cu").write_text("this is no kernel")
    device = make_device(tmp_path)
    with pytest.raises(
        DeviceFault, match=r"norm\.cu can't be compiled for sm_90: NVRTC_ERROR_COMPILATION\n.*error: expected"
    ):
        device.load(table.NORM)
    device.close()


def test_a_cubin_is_compiled_once_and_anew_when_any_text_changes(compiler: Path, tmp_path: Path) -> None:
    texts, kept = tmp_path / "texts", tmp_path / "kept"
    texts.mkdir()
    for path in sources().iterdir():
        (texts / path.name).write_text(path.read_text())
    first = Cubins(Nvrtc(compiler), kept, texts)("norm.cu", "sm_90", {})
    written = first.stat().st_mtime_ns
    assert Cubins(Nvrtc(compiler), kept, texts)("norm.cu", "sm_90", {}) == first
    assert first.stat().st_mtime_ns == written
    assert Cubins(Nvrtc(compiler), kept, texts)("norm.cu", "sm_80", {}) != first
    (texts / "kernel.cuh").write_text((texts / "kernel.cuh").read_text() + "\n")
    assert Cubins(Nvrtc(compiler), kept, texts)("norm.cu", "sm_90", {}) != first
    assert {path.suffix for path in kept.iterdir()} == {".cubin"}


def test_where_cubins_can_not_be_kept_they_are_there_for_this_start_alone(
    compiler: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cubins = Cubins(Nvrtc(compiler), tmp_path / "file" / "cubins")
    made = cubins("norm.cu", "sm_90", {})
    assert "can't be written (Not a directory): kernels are compiled at each start" in caplog.text
    assert cubins("norm.cu", "sm_90", {}) == made
    assert made.stat().st_size > 0
    del cubins
    assert not made.parent.exists()


def test_a_kept_cubin_that_is_damaged_is_compiled_anew(
    compiler: Path, driver: ctypes.CDLL, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Cubins(Nvrtc(compiler), tmp_path)("norm.cu", "sm_90", {})
    (kept,) = tmp_path.iterdir()
    size = kept.stat().st_size
    kept.write_bytes(kept.read_bytes()[:100])
    device = Device(Cubins(Nvrtc(compiler), tmp_path))
    device.load(table.NORM)
    device.close()
    assert kept.stat().st_size == size
    assert "could not load the kernels of norm.cu" in caplog.text


def test_cubins_are_kept_in_the_users_cache() -> None:
    assert cubin_cache().parts[-2:] == ("strata", "cubins")


def test_a_compiler_that_cannot_be_found_is_a_thing_to_install() -> None:
    code = """
import ctypes, importlib.util
importlib.util.find_spec = lambda name: None
from strata.errors import DeviceMissing
from strata.gpu.nvrtc import NVRTC, Nvrtc
try:
    Nvrtc()
except DeviceMissing as error:
    print(error)
"""
    assert "NVRTC, which compiles the kernels, is missing: `pip install" in python(code, {"PATH": "/usr/bin:/bin"})


def test_nvidias_own_compiler_takes_the_kernels_and_spills_nothing() -> None:
    """Those of one format for one card; `make gpu-check` takes all of both."""
    said = subprocess.run(
        [sys.executable, Path(__file__).parent / "compile_all.py", "Q5_1", "sm_75"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "linear.cu -DWEIGHTS=Q5_1 -DGATE=gelu for sm_75: 7 kernels, 0 spilled" in said
    for file in ("tensor.cu", "sixteen.cu"):
        assert f"{file} -DWEIGHTS=Q5_1 -DNUMBER=Half for sm_75: 3 kernels, 0 spilled" in said
    assert said.count("kernels, 0 spilled\n") == said.count("\n")
    assert {path.name for path in sources().glob("*.cu")} == {line.split()[0] for line in said.splitlines()}


def test_an_architecture_that_the_compiler_does_not_know_is_named() -> None:
    code = """
from strata.gpu.nvrtc import NVRTC, Nvrtc
Nvrtc(next(iter(NVRTC.in_wheels().values()))).compile("", "norm.cu", "sm_1", headers={})
"""
    said = python(code, {"PATH": "/usr/bin:/bin"})
    assert re.search(r"DeviceMissing: NVRTC of CUDA [\d.]+ doesn't know cards of sm_1: `pip install --upgrade", said)


# -- what there is ------------------------------------------------------------------------------------------------


LOOK = """
import attrs, json
from strata.gpu.found import look
print(json.dumps(attrs.asdict(look())))
"""


def found(environ: dict[str, str]) -> dict[str, str | None]:
    said: dict[str, str | None] = json.loads(python(LOOK, environ))
    return said


def test_a_card_that_can_be_used_is_found_with_its_compiler(fake_folder: Path) -> None:
    there = found(fakes.environ(fake_folder))
    assert there["problem"] is None
    assert there["compiler"] == "NVRTC of CUDA 13.9000"
    assert str(there["card"]).startswith("emulated, sm_90, ")


def test_a_card_that_is_not_there_is_a_problem_and_the_compiler_is_found_all_the_same(fake_folder: Path) -> None:
    there = found({**fakes.environ(fake_folder), "FAKECUDA_DEVICES": "0"})
    assert there["card"] is None
    assert there["compiler"] == "NVRTC of CUDA 13.9000"
    assert "no CUDA card" in str(there["problem"])


def test_the_compiler_of_a_wheel_is_found() -> None:
    """One of them at least is there: the test of the kernels takes it."""
    assert all(path.name.startswith("libnvrtc.so.") for path in NVRTC.in_wheels().values())
    assert next(iter(NVRTC.in_wheels().values())).exists()
