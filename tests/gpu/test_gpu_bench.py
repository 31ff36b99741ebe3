"""What is measured of a card by a room of its own: what it does at most, and how soon it follows a newer step.

No figure of an emulated one means anything.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import fakes
import numpy as np
import pytest
from hard import agree, exact_product
from served import run

from strata.errors import DeviceMissing
from strata.gpu.cublas import Library
from strata.gpu.device import Device
from strata.gpu.libraries import Wanted
from strata.gpu.roof import Roof
from strata.testing.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def device(make_device: Callable[[], Device]) -> Iterator[Device]:
    made = make_device()
    yield made
    made.close()


def test_a_copy_takes_no_more_than_is_free_and_is_all_there(device: Device) -> None:
    """Read and written."""
    roof = Roof(device, "f32", copied=3 << 20)
    assert roof.copy() == 2 * (3 << 20)
    there = np.ones(3 << 20, np.uint8)
    _source, to, _ = roof._pair
    device.download(to, there)
    assert not there.any()
    free = device.free_memory()
    assert Roof(device, "f32", copied=free).copy() == 2 * (free // 16)


@pytest.mark.parametrize(("number", "itemsize"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_a_product_is_of_whole_matrices_by_the_library(
    device: Device, find_cublas: Callable[..., Library], number: str, itemsize: int
) -> None:
    """In the numbers of rows that are read together, or in float32."""
    roof = Roof(device, number, side=64, find=find_cublas)
    for together, kind in ((True, number), (False, "f32")):
        what, sums = roof.multiply(together)
        assert what.startswith(f"{kind}, cuBLAS ")
        assert sums == 2 * 64**3
    x, weights, out = roof._products["f32"]
    sides, got = [np.empty((64, 64), np.float32) for _ in range(2)], np.empty((64, 64), np.float32)
    for at, side in zip((x, weights), sides, strict=True):
        device.download(at.pointer, side)
    device.download(out.pointer, got)
    agree(got, *exact_product(*sides), additions=64)
    assert sides[0].std() > 0.9, "zeros take less power"
    roof.close()


def test_matrices_are_smaller_where_little_is_free(
    device: Device, driver: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of them are an eighth of it at most."""
    taken = (1 << 30) - device.free_memory()
    monkeypatch.setenv("FAKECUDA_MEMORY", str(taken + 8 * 12 * 100 * 100))
    x, weights, out = Roof(device, "f32", side=1 << 20)._matrices("f32")
    assert (x.rows, x.columns) == (weights.rows, weights.columns) == (out.rows, out.columns) == (64, 64)


def test_without_the_library_no_product_is_a_roof(device: Device) -> None:
    roof = Roof(device, "f32", find=partial(Library, Wanted("libnowhere", beside="libnowhere-either")))
    with pytest.raises(DeviceMissing, match="cuBLAS is missing"):
        roof.multiply(True)
    roof.close()


def test_operations_of_a_card_are_held_against_its_own_copy(fake_folder: Path, tmp_path: Path) -> None:
    """By the command, and without cuBLAS, which it says."""
    for name in (fakes.DRIVER, fakes.COMPILER):
        shutil.copy(fake_folder / name, tmp_path / name)
    model = write_tiny_model(tmp_path / "tiny.gguf", layers=1, context=512)
    figures = tmp_path / "figures.json"
    environ = {**fakes.environ(fake_folder), "LD_LIBRARY_PATH": str(tmp_path)}
    command = ("bench", "operations", "--device", "cuda", "--model", model, "--repeats", "1", "--json", figures)
    done = run(*command, environ=environ)
    assert "left out: a large product, so shares are of the memory's roof alone: cuBLAS is missing" in done.stdout
    copy, *others = json.loads(figures.read_text())["rows"]
    assert (copy["what"], copy["of_roof"]) == ("a large copy", 100)
    for one in others:
        assert one["of_roof"] == pytest.approx(100 * one["gb_per_s"] / copy["gb_per_s"])


def test_a_newer_step_is_timed_on_a_card_too(fake_folder: Path, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", layers=4, context=512)
    command = ("bench", "newer-step", "--device", "cuda", "--model", model, "--repeats", "1", "--page-tokens", "16")
    done = run(*command, environ=fakes.environ(fake_folder))
    assert "on cuda (emulated, sm_90)" in done.stdout.replace("\n", " ")
    assert "while a prompt is read" in done.stdout
