"""Runs every kernel once on small and ragged shapes, with a sanitizer; exit code 1 if it, or the emulator, complains.

    sanitized.py address                          out of bounds, misaligned, undefined
    sanitized.py thread                           what no barrier orders
    sanitized.py thread linear.cu 2               the same without the second barrier of that file, which must fail

The sanitizer's own library must have been loaded first (LD_PRELOAD): `check.py` knows how.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import fakes
import numpy as np
from hard import rows, tensor

if TYPE_CHECKING:
    from strata.gpu.ops import GpuOps

FLAGS = {"address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], "thread": ["-fsanitize=thread"]}
PRODUCTS = ("linear.cu", "tensor.cu", "draw.cu")
"""And what is run with them."""
BARRIER = re.compile(r"__sync(threads|warp)\(\);")


def main(sanitizer: str, *canary: str) -> None:
    folder = fakes.fakes(*FLAGS[sanitizer])
    fakes.load(folder)
    os.environ["EMU_FLAGS"] = " ".join([*FLAGS[sanitizer], "-O1", "-fno-omit-frame-pointer"])
    if not canary:
        run(folder, None)
        return
    with tempfile.TemporaryDirectory() as changed:
        without(Path(changed), canary[0], int(canary[1]))
        run(folder, Path(changed), canary[0])


def without(folder: Path, file: str, number: int) -> None:
    """All kernel files, one of them without its barrier of that number, from 1."""
    from strata.gpu.cubins import sources

    for path in sources().iterdir():
        text = path.read_text()
        if path.name == file:
            found = list(BARRIER.finditer(text))[number - 1]
            text = text[: found.start()] + text[found.end() :]
        (folder / path.name).write_text(text)


def run(folder: Path, texts: Path | None, canary: str | None = None) -> None:
    from strata.gpu.cubins import Cubins
    from strata.gpu.device import Device
    from strata.gpu.nvrtc import Nvrtc
    from strata.gpu.ops import GpuOps

    ops = GpuOps(lambda: Device(Cubins(Nvrtc(folder / fakes.COMPILER), fakes.cubin_folder(folder), texts)))
    if canary not in PRODUCTS:
        attention(ops)
    if canary in (None, *PRODUCTS):
        products(ops, "F32", folder)
    if canary is None:
        products(ops, "Q5_1", folder)
    ops.close()


def products(ops: GpuOps, kind: str, folder: Path) -> None:
    from strata.gpu.cublas import Cublas, Library
    from strata.gpu.products import MANY_OF, RowwiseKernels
    from strata.gpu.whole_tiles import Sizes, WholeTiles

    matrix = ops.matrix([tensor(70, 96, kind)])
    gated = ops.gated_matrix(tensor(70, 96, kind), tensor(70, 96, kind, 1), "gelu")
    x, out = ops.stored(rows(9, 96)), ops.empty(9, 70)
    ops.embed(matrix, np.array([69, 0]), 2.0, ops.empty(2, 96))
    in_tensor_cores = [RowwiseKernels(ops._device, MANY_OF[number]) for number in ("f16", "bf16")]
    cublas = Cublas(Library(folder / fakes.CUBLAS), ops._device)
    by_cublas = [WholeTiles(ops._device, cublas, number, Sizes(9, 4096, 8)) for number in ("f16", "bf16")]
    for kernels in by_cublas:
        kernels.expect(96)
    for kernels in (ops.rows, ops.tiles, *in_tensor_cores, *by_cublas):
        kernels.norm(x, ops.stored(rows(1, 96)), 1e-5, x)
        kernels.add_norm(x, ops.stored(rows(1, 96)), 1e-5, ops.stored(rows(9, 96)))
        kernels.linear(x, matrix, out)
        kernels.add_linear(x, matrix, out)
        kernels.gated(x, gated, out)
        assert np.isfinite(ops.numbers(out)).all()
    cublas.close()
    draw(ops)


def draw(ops: GpuOps) -> None:
    from strata.draws import ALL, Draw
    from strata.engine.drawing import WHOLE, drawn

    numbers, draws = rows(3, 500), [Draw(1.0, 1, ALL, 0, 0), None, Draw(1.5, 90, ALL // 2, WHOLE // 90, 3)]
    tokens = [one and drawn(row, one, at) for at, (row, one) in enumerate(zip(numbers, draws, strict=True))]
    assert ops.draw(ops.stored(numbers), draws, range(3)) == tokens


def attention(ops: GpuOps) -> None:
    """Of heads that are wider than 128 too, which other parts of the kernels sum up."""
    for numbers in ("f32", "f16"):
        for head_dim, length in ((36, 261), (136, 70)):
            attention_over(ops, numbers, head_dim, length)


def attention_over(ops: GpuOps, numbers: str, head_dim: int, length: int) -> None:
    """Keys and values that are kept as these; the last 35 of so many positions attend."""
    from strata.gpu.attention import Rows
    from strata.gpu.cache import STORED, PagedCache
    from strata.models.ops import CacheShape, Sight

    shape = CacheShape(layers=2, pages=9, page_tokens=40, kv_heads=2, head_dim=head_dim)
    cache, pages = PagedCache(ops._device, shape, STORED[numbers]), [8, 0, 3, 5, 1, 2, 7]
    together, (q, k) = ops.stored(rows(length, 8 * head_dim)), (4 * head_dim, 6 * head_dim)
    ops.rows.norm_heads(together[:, q:k], ops.stored(rows(1, head_dim)), 1e-5)
    ops.rows.add(together, ops.stored(rows(1, 8 * head_dim)))
    given = Rows(together[:, :q], together[:, q:k], together[:, k:])
    out, angles = ops.empty(35, q), ops.rotation(length, head_dim - 4, 1e4)
    ops.attention.turn_and_store(given, cache, Sight(1, angles, 1.0), pages, 0)
    for window in (0, 30):
        sight = Sight(1, angles, 1 / 6, window)
        ops.attention.chunk(given.queries[length - 35 :], cache, sight, pages, length - 35, out)
        placed = ops.attention.place(cache, [(pages, length - 1), (pages, 5)])
        ops.attention.turn_and_store_rows(given[:2], cache, sight, placed)
        ops.attention.rows(given.queries[:2], cache, sight, placed, out[:2])
    assert np.isfinite(ops.numbers(out)).all()


if __name__ == "__main__":
    main(*sys.argv[1:])
