"""Products by cuBLAS: exact up to rounding, a row's bits by its position alone, and each error as what to do."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import fakes
import numpy as np
import pytest
from drive import Drive, prompt
from hard import MAGNITUDES, agree, exact_product, opened, random_blocks, rounded, rows, tensor
from parity import MOVES, Disturb, Run, another, cached, same, same_from_first_chunk_on
from reads import logits_of

from strata.config import Settings
from strata.errors import ConfigError, DeviceFault, DeviceMissing, OutOfDeviceMemory
from strata.gpu import table
from strata.gpu.arrays import DeviceArray
from strata.gpu.cublas import Cublas, Library, Numbers, open_cublas
from strata.gpu.device import Device
from strata.gpu.libraries import Wanted
from strata.gpu.ops import GpuOps
from strata.gpu.weights import FORMATS, float32
from strata.gpu.whole_tiles import USUAL, Sizes
from strata.messages import Seq
from strata.models import open_model
from strata.models.config import RawTensor
from strata.models.make import make_model

NUMBERS = ("f16", "bf16")
SMALL = Sizes(rows=32, weight_bytes=1 << 14, outputs=48)
"""So that all comes in parts."""

MakeDevice = Callable[..., Device]
Find = Callable[[], Library]
MakeOps = Callable[..., GpuOps]


@pytest.fixture(scope="module")
def make_ops(make_device: MakeDevice, find_cublas: Find) -> MakeOps:
    def make(number: str, sizes: Sizes = SMALL) -> GpuOps:
        return GpuOps(make_device, number, partial(open_cublas, "cublas", find=find_cublas), sizes)

    return make


@pytest.fixture(scope="module", params=NUMBERS)
def number(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def blas(make_ops: MakeOps, number: str) -> Iterator[GpuOps]:
    made = make_ops(number)
    yield made
    made.close()


# -- rounding -----------------------------------------------------------------------------------------------------


def sixteen(ops: GpuOps, pointer: int, count: int, width: int, number: str) -> np.ndarray:
    """The numbers there, as float32."""
    bits = np.empty((count, width), np.uint16)
    ops._device.download(pointer, bits)
    if number == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_rows_are_rounded_to_the_nearest_number_of_sixteen_bits(blas: GpuOps, number: str, magnitude: str) -> None:
    """Columns of wider rows; numbers in the middle between two, too large ones, and what is none."""
    x = rows(5, 1500, 1, magnitude)
    x[0, 3:11] = [np.nan, np.inf, -np.inf, 65504, 65519.996, 65520, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    x[1, 3:9] = [2.0**-25, 2.0**-25 * 1.0001, -(2.0**-24), 3 * 2.0**-25, 1 + 2.0**-8, 1 + 3 * 2.0**-8]
    kernel = blas._device.load(table.ROUND_ROWS, WEIGHTS="F32", NUMBER={"f16": "Half", "bf16": "Brain"}[number])
    to, some = blas._device.alloc(2 * 5 * 1496), blas.stored(x)[:, 3:1499]
    blas._device.launch(kernel, (5, 1), some.pointer, some.stride, to, 1496)
    np.testing.assert_array_equal(sixteen(blas, to, 5, 1496, number), rounded(x[:, 3:1499], number))


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_of_each_format_are_rounded_to_the_nearest(blas: GpuOps, number: str, kind: str) -> None:
    """Some rows of them.  The kernel's float32 may be another by a rounding, and so on one of two sides."""
    columns = 512 if kind.endswith("_K") else 96
    weight = tensor(9, columns, kind, 2) if kind in ("F32", "F16", "BF16") else blocks(9, columns, kind)
    (part,) = blas.matrix([weight]).parts
    kernel = blas._device.load(table.ROUND_WEIGHTS, WEIGHTS=kind, NUMBER={"f16": "Half", "bf16": "Brain"}[number])
    to = blas._device.alloc(2 * 5 * columns)
    blas._device.launch(kernel, (5, 1), part.pointer, 4, to, columns)
    got, exact = sixteen(blas, to, 5, columns, number), float32(weight)[4:]
    off = 4e-7 * np.abs(exact).max()
    assert (got >= rounded(exact - off, number)).all()
    assert (got <= rounded(exact + off, number)).all()


def blocks(outputs: int, columns: int, kind: str) -> RawTensor:
    return RawTensor("w", kind, (outputs, columns), random_blocks(outputs, columns, kind))


# -- products -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "magnitude"),
    [("F32", "plain"), ("F32", "small"), ("F32", "denormal"), ("Q4_1", "plain"), ("Q8_0", "plain")],
)
def test_a_product_is_exact_up_to_the_rounding_of_what_is_multiplied(
    blas: GpuOps, number: str, kind: str, magnitude: str
) -> None:
    """Two tiles of rows, two matrices one below the other, each in parts; in columns of wider rows, added and not."""
    x, above, below = rows(64, 96, 1, magnitude), tensor(70, 96, kind, 2, magnitude), tensor(49, 96, "F16", 3)
    matrix, before = blas.matrix([above, below]), rows(64, 130, 4)
    exact, size = exact_product(rounded(x, number), rounded(np.concatenate([float32(above), float32(below)]), number))
    for operation, there in ((blas.tiles.linear, np.zeros((64, 119))), (blas.tiles.add_linear, before[:, 5:124])):
        out = blas.stored(before)
        operation(blas.stored(x), matrix, out[:, 5:124])
        got = blas.numbers(out)
        agree(got[:, 5:124], exact + there, size + np.abs(there), additions=97)
        assert np.delete(got, np.s_[5:124], 1).tolist() == np.delete(before, np.s_[5:124], 1).tolist()


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gate_is_exact_up_to_rounding(
    blas: GpuOps, number: str, kind: str, activation: Literal["silu", "gelu"]
) -> None:
    x, sides = rows(32, 96, 1), (tensor(70, 96, kind, seed=2), tensor(70, 96, kind, seed=3))
    out = blas.empty(32, 70)
    blas.tiles.gated(blas.stored(x), blas.gated_matrix(*sides, activation), out)
    left, right = (exact_product(rounded(x, number), rounded(float32(side), number))[0] for side in sides)
    exact = opened(left, activation)[0] * right
    np.testing.assert_allclose(blas.numbers(out), exact, rtol=1e-4, atol=2e-3)


def test_gates_of_more_columns_than_a_block_has_threads_are_all_opened(blas: GpuOps) -> None:
    kernel = blas._device.load(table.OPEN_GATES, WEIGHTS="F32", NUMBER="Half")
    left, right = rows(3, 300, 1), rows(3, 300, 2)
    gates, out = blas.stored(left), blas.stored(right)
    blas._device.launch(kernel, (3, 1), gates.pointer, gates.stride, out.pointer, out.stride, 300)
    np.testing.assert_allclose(blas.numbers(out), left / (1 + np.exp(-left)) * right, rtol=1e-5)


def test_weights_that_lie_in_these_numbers_already_are_not_copied(blas: GpuOps, number: str) -> None:
    """Nothing is written where others are made into 16 bits."""
    blas._device.zero(blas.tiles._weights, 16)
    out, kind = blas.empty(32, 9), {"f16": "F16", "bf16": "BF16"}[number]
    blas.tiles.linear(blas.stored(rows(32, 96)), blas.matrix([tensor(9, 96, kind)]), out)
    assert not sixteen(blas, blas.tiles._weights, 1, 8, number).any()
    blas.tiles.linear(blas.stored(rows(32, 96)), blas.matrix([tensor(9, 96, "Q8_0")]), out)
    assert sixteen(blas, blas.tiles._weights, 1, 8, number).any()


def test_what_sixteen_bits_cannot_hold_is_seen_and_stays_in_its_row(blas: GpuOps, number: str) -> None:
    x = np.ones((32, 8), np.float32)
    x[1, 3], x[2, 2] = 65520, np.nan
    ones, out = RawTensor("w", "F32", (1, 8), np.ones(8, np.float32).view(np.uint8)), blas.empty(32, 1)
    blas.tiles.linear(blas.stored(x), blas.matrix([ones]), out)
    wanted = np.full(32, 8, np.float32)
    wanted[1:3] = np.inf if number == "f16" else 65536 + 7, np.nan
    np.testing.assert_array_equal(blas.numbers(out)[:, 0], wanted)


# -- same position, same bits -------------------------------------------------------------------------------------


def test_the_emulated_library_has_other_bits_for_a_row_at_another_place_or_in_another_shape(
    blas: GpuOps, number: str, fake_folder: Path
) -> None:
    """So that who breaks the rule is found."""
    row, weight = rounded(rows(1, 96, 1), number), blas.matrix([tensor(40, 96, seed=2)]).parts[0]
    x = blas.stored(np.repeat(row, 32, axis=0))
    rows_there = blas.tiles._rounded(x, weight)
    made = blas.tiles._sixteen(weight, slice(0, 40))

    def product(count: int, outputs: int = 40, shift: int = 0) -> np.ndarray:
        out = DeviceArray(blas._device.alloc(4 * (count * outputs + 8)) + shift, count, outputs, outputs)
        some = Numbers(made.pointer, outputs, 96)
        blas._blas.product(Numbers(rows_there.pointer, count, 96), some, number, out)
        return blas.numbers(out)[:, :20]

    whole = product(32)
    assert len({one.tobytes() for one in whole}) > 16
    assert whole.tobytes() == product(32).tobytes()
    for other in (product(31), product(32, outputs=39), product(32, shift=16)):
        assert other.tobytes() != whole[: len(other)].tobytes()


def test_a_row_has_the_same_bits_whatever_stands_beside_it_and_in_whichever_tile(blas: GpuOps, number: str) -> None:
    x, weight = rows(32, 96, 1), tensor(70, 96, "Q4_1", 2)
    matrix = blas.matrix([weight, tensor(10, 96, "F16")])
    gates = blas.gated_matrix(weight, tensor(70, 96, "Q4_1"), "silu")
    beside = np.full((32, 96), np.nan, np.float32)
    beside[17] = x[17]
    for operation, made, width in ((blas.tiles.linear, matrix, 80), (blas.tiles.gated, gates, 70)):
        out = blas.empty(96, width)
        operation(blas.stored(np.concatenate([x, beside, x])), made, out)
        got = blas.numbers(out)
        assert got[17].tobytes() == got[32 + 17].tobytes() == got[64 + 17].tobytes()
        assert got[:32].tobytes() == got[64:].tobytes()


@pytest.mark.parametrize(("columns", "outputs"), [(1024, 8192), (18944, 1768), (1 << 22, 8), (1 << 25, 1)])
def test_parts_of_weights_begin_where_sums_can_be_stored_at_once(columns: int, outputs: int) -> None:
    """At multiples of 32 bytes of a row, if there is room for so many; all that fit of the widest."""
    assert USUAL.of_part(columns) == outputs


def test_rows_that_are_no_whole_tiles_are_refused(blas: GpuOps) -> None:
    with pytest.raises(ValueError, match="40 rows are no tiles of 32"):
        blas.tiles.linear(blas.stored(rows(40, 96)), blas.matrix([tensor(9, 96)]), blas.empty(40, 9))


@pytest.fixture(scope="module", params=[(64, "f16"), (48, "bf16")], ids=str)
def drive(request: pytest.FixtureRequest, make_ops: MakeOps, tiny_model_path: Path) -> Iterator[Drive]:
    """Tiles that are chunks, and tiles that chunks begin and end in.  Its pages are full of what others left."""
    drive = driven(make_ops, tiny_model_path, *request.param)
    another(8)(drive, Seq(0))
    yield drive
    drive.engine.close()


def driven(make_ops: MakeOps, path: Path, tile: int, number: str, **named: int) -> Drive:
    return Drive(make_model(open_model(path), make_ops(number, Sizes(tile, 1 << 14, 48))), **named)


@pytest.fixture(scope="module")
def undisturbed(drive: Drive) -> Run:
    return Run(drive)


@pytest.mark.parametrize(
    "disturb",
    [another(0), another(3), MOVES["there_and_back"]],
    ids=["half read", "another", "moved"],
)
def test_a_park_after_any_slice_or_step_changes_no_bit(drive: Drive, undisturbed: Run, disturb: Disturb) -> None:
    """B54: all of it, keys and values too."""
    same(Run(drive, dict.fromkeys(range(1, len(undisturbed.prints) + 1), disturb)), undisturbed)


@pytest.mark.parametrize("known", [16, 32, 48])
def test_a_cached_beginning_changes_no_bit(drive: Drive, undisturbed: Run, known: int) -> None:
    """B54: what is read of a tile stands where it always does in it."""
    same_from_first_chunk_on(Run(drive, cached=cached(drive, known)), undisturbed)


@pytest.mark.parametrize("chunk", [16, 100])
def test_however_a_prompt_is_cut_into_chunks_its_bits_are_the_same(
    drive: Drive, undisturbed: Run, make_ops: MakeOps, tiny_model_path: Path, chunk: int
) -> None:
    """B54: its last print has all keys and values."""
    tiles = drive.model._ops
    other = driven(make_ops, tiny_model_path, tiles.tile, tiles._activations, chunk=chunk)
    run = Run(other)
    other.engine.close()
    assert run.tokens == undisturbed.tokens
    assert run.prints[-1]["kv"] == undisturbed.prints[-1]["kv"]


@pytest.mark.parametrize(
    ("number", "digits", "name"),
    [("f16", 11, "tiny"), ("bf16", 8, "tiny"), ("f16", 11, "qwen2"), ("bf16", 8, "gemma3.gguf")],
)
def test_logits_are_those_of_our_own_kernels_nearly(
    make_device: MakeDevice, make_ops: MakeOps, tiny_model_path: Path, number: str, digits: int, name: str
) -> None:
    """In the sizes that a server takes; the sums are the same but for their order."""
    path = tiny_model_path if name == "tiny" else Path(__file__).parents[1] / "data" / "checkpoints" / name
    exact = logits_of(path, GpuOps(make_device))
    own = logits_of(path, GpuOps(make_device, number))
    by_library = logits_of(path, make_ops(number, USUAL))
    assert 0 < np.linalg.norm(by_library - own) < np.linalg.norm(exact) * 4 * 2.0**-digits
    assert 0 < np.linalg.norm(by_library - exact) < np.linalg.norm(exact) * 16 * 2.0**-digits


def test_what_stands_beside_the_rows_that_are_read_is_finite(make_ops: MakeOps, tiny_model_path: Path) -> None:
    """Memory is not a number until it is written, and padding attends to nothing."""
    drive = driven(make_ops, tiny_model_path, 32, "f16")
    drive.open(Seq(1), prompt(1, 20))
    drive.step(read=Seq(1))
    drive.until_written(Seq(1), 1)
    for array in (drive.model._room.attended, drive.model._room.activated):
        assert np.isfinite(drive.model._ops.numbers(array[:32])).all()
    drive.engine.close()


# -- what is missing, and what goes wrong -------------------------------------------------------------------------


@pytest.fixture
def device(driver: ctypes.CDLL, make_device: MakeDevice) -> Iterator[Device]:
    opened = make_device()
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FAKECUBLAS_VERSION", "1109", r"cuBLAS 11\.9 is too old, 12\.0 is needed: `pip install '\.\[cublas\]'"),
        ("FAKECUBLAS_VERSION", "1400", r"the driver knows CUDA 13\.\d+ and there is cuBLAS 14\.0: update it, or `pip"),
        ("FAKECUBLAS_CREATE", "1", r"cuBLAS 13\.9 doesn't go with this driver and card \(the library was not init"),
    ],
)
def test_a_library_that_does_not_fit_is_refused_or_passed_over_with_one_line(
    device: Device,
    find_cublas: Find,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
    says: str,
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DeviceMissing, match=f"^{says}"):
        open_cublas("cublas", device, find_cublas)
    with caplog.at_level(logging.WARNING):
        assert open_cublas("auto", device, find_cublas) is None
    (record,) = caplog.records
    assert record.getMessage().startswith("strata: our own kernels multiply what is read: ")
    assert "\n" not in record.getMessage()


def test_a_library_that_is_nowhere_is_a_thing_to_install(device: Device) -> None:
    nowhere = partial(Library, Wanted("libnowhere", beside="libnowhere-either"))
    with pytest.raises(
        DeviceMissing, match=r"^cuBLAS is missing: `pip install '\.\[cublas\]'` in the project's folder"
    ):
        open_cublas("cublas", device, nowhere)


def test_a_library_is_found_in_a_wheel(fake_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As NVIDIA's wheels lay it out, and the newest of several."""
    for version in ("12", "13"):
        folder = tmp_path / "nvidia" / f"cu{version}" / "lib"
        folder.mkdir(parents=True)
        (folder / f"libsomewhere.so.{version}").symlink_to(fake_folder / fakes.CUBLAS)
        (folder / f"libbeside.so.{version}").symlink_to(fake_folder / fakes.COMPILER)
    monkeypatch.syspath_prepend(tmp_path)
    library = Library(Wanted("libsomewhere", beside="libbeside"))
    assert str(library) == "cuBLAS 13.9"
    assert Path(library.calls._name).name == "libsomewhere.so.13"


def test_a_file_that_is_no_such_library_is_said_to_be_none(compiler: Path, tmp_path: Path) -> None:
    with pytest.raises(DeviceMissing, match=r"^cuBLAS is too old, it has no cublasCreate_v2: "):
        Library(compiler)
    (tmp_path / "libcublas.so.13").write_text("this is no library")
    with pytest.raises(DeviceMissing, match=r"^cuBLAS can't be loaded \(.*\): "):
        Library(tmp_path / "libcublas.so.13")


def test_our_own_kernels_need_no_library(device: Device) -> None:
    def nowhere() -> Library:
        raise AssertionError("it was looked for")

    assert open_cublas("own", device, nowhere) is None


def test_in_float32_no_library_is_opened(make_device: MakeDevice) -> None:
    def nowhere(device: Device) -> Cublas:
        raise AssertionError("it was looked for")

    ops = GpuOps(make_device, "f32", nowhere)
    assert ops.tile == 1
    ops.close()


def test_a_card_without_memory_for_the_library_is_out_of_memory(
    device: Device, find_cublas: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reason to take others: what it needs is there."""
    monkeypatch.setenv("FAKECUDA_MEMORY", str(16 << 20))
    with pytest.raises(OutOfDeviceMemory, match=r"allocate 32\.0 MiB"):
        open_cublas("auto", device, find_cublas)
    monkeypatch.setenv("FAKECUBLAS_CREATE", "3")
    with pytest.raises(OutOfDeviceMemory, match=r"no memory left for cuBLAS 13\.9"):
        open_cublas("auto", device, find_cublas)


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (3, OutOfDeviceMemory, "the resource allocation failed"),
        (13, DeviceFault, "the function failed to launch on the GPU"),
        (14, DeviceFault, "another error"),
    ],
)
def test_a_product_that_fails_ends_the_engine(
    make_ops: MakeOps,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fake_folder: Path,
    status: int,
    kind: type[DeviceFault],
    says: str,
) -> None:
    """And all can be closed, even if the library can't."""
    monkeypatch.setenv("FAKECUBLAS_FAULT", str(tmp_path / "fault"))
    monkeypatch.setenv("FAKECUBLAS_DESTROY", "13")
    ops = make_ops("f16")
    matrix, x, out = ops.matrix([tensor(9, 96)]), ops.stored(rows(32, 96)), ops.empty(32, 9)
    ops.tiles.linear(x, matrix, out)
    (tmp_path / "fault").write_text(str(status))
    with pytest.raises(kind, match=f"could not multiply: cublasGemmEx failed: {says}"):
        ops.tiles.linear(x, matrix, out)
    ops.close()
    ops.close()


def test_a_fault_of_the_card_is_seen_by_the_next_product(
    driver: ctypes.CDLL, make_ops: MakeOps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKECUDA_FAULT", str(tmp_path / "fault"))
    ops = make_ops("f16")
    matrix, x, out = ops.matrix([tensor(9, 96)]), ops.stored(rows(32, 96)), ops.empty(32, 9)
    (tmp_path / "fault").write_text("719")
    ops.tiles.linear(x, matrix, out)
    with pytest.raises(DeviceFault, match="could not compute"):
        ops.numbers(out)
    with pytest.raises(DeviceFault):
        ops.tiles.linear(x, matrix, out)
    ops.close()
    driver.fakecuda_heal()


# -- memory -------------------------------------------------------------------------------------------------------


def test_memory_for_products_is_taken_as_weights_are_loaded_and_said(
    make_device: MakeDevice, make_ops: MakeOps, tiny_model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B37: so it is not free when pages are counted, and none of it is taken later."""
    free = {}
    for name, make in (("own", partial(GpuOps, make_device, "f16")), ("by library", partial(make_ops, "f16", USUAL))):
        ops = make()
        model = make_model(open_model(tiny_model_path), ops)
        free[name] = ops.available_bytes()
        with caplog.at_level(logging.INFO):
            model.allocate(1, 64, context=64, rows=1)
        model.close()
    # To work in, weights, gates, the widest rows and those that were before.
    taken = (32 << 20) + (64 << 20) + 4 * 512 * 8192 + 2 * 512 * (64 + 128)
    assert free["own"] - free["by library"] == taken
    said = f"strata: cuBLAS 13.9 multiplies what is read, with {taken / 2**20:.1f} MiB of the card"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert model.device == "cuda (emulated, sm_90, f16, cuBLAS 13.9)"


def test_a_workspace_has_room_for_the_tiles_that_a_chunk_begins_and_ends_in(
    make_ops: MakeOps, tiny_model_path: Path
) -> None:
    model = make_model(open_model(tiny_model_path), make_ops("f16", USUAL))
    assert [model.bytes_per_workspace(tokens) // (4 * 64) for tokens in (16, 512, 514)] == [1024, 1024, 1536]
    model.close()


@pytest.mark.parametrize("value", ["cuBLAS", "", "blas"])
def test_products_that_there_are_not_are_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^products: "):
        Settings.of(device="cuda", activations="f16", products=value)
