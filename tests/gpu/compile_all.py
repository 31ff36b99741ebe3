"""Compiles the kernels with NVIDIA's own NVRTC; fails if any of them spills registers.

    compile_all.py all sm_75 sm_80      every format of weights, for these cards
    compile_all.py Q5_1 sm_75           one of them

A program of its own: two libraries of this name in one process get into each other's way.
"""

from __future__ import annotations

import sys

from strata.gpu.cubins import sources
from strata.gpu.nvrtc import NVRTC, Nvrtc
from strata.gpu.weights import FORMATS

HEADS = ("-DHEAD_DIM=64", "-DHEAD_DIM=128", "-DHEAD_DIM=256")
STORED = ("-DSTORED=Single", "-DSTORED=Half", "-DSTORED=Brain")

WITHOUT_BRAIN = ("sm_75",)


def main(formats: tuple[str, ...], archs: list[str]) -> int:
    nvrtc, texts = Nvrtc(next(iter(NVRTC.in_wheels().values()))), sources()
    in_sixteen_bits = [
        *(f"-DWEIGHTS={kind} -DNUMBER=Half" for kind in formats),
        f"-DWEIGHTS={formats[-1]} -DNUMBER=Brain",  # which differs in one instruction
    ]
    variants = {
        "tensor.cu": in_sixteen_bits,
        "sixteen.cu": in_sixteen_bits,
        "linear.cu": [f"-DWEIGHTS={kind} -DGATE={gate}" for kind in formats for gate in ("silu", "gelu")],
        "chunk.cu": [f"{head} {STORED[0]}" for head in HEADS],
        "chunk_tensor.cu": [f"{head} {stored}" for head in HEADS for stored in STORED[1:]],
        "decode.cu": [f"{head} {stored}" for head in HEADS for stored in STORED],
        "turn.cu": STORED,
    }
    headers = {path.name: path.read_text() for path in texts.glob("*.cuh")}
    spilling = 0
    for arch in archs:
        for path in sorted(texts.glob("*.cu")):
            for variant in variants.get(path.name, ["-DNOTHING"]):
                if "Brain" in variant and arch in WITHOUT_BRAIN:
                    continue
                options = ["--ptxas-options=-v", *variant.split()]
                _, log = nvrtc.compile(path.read_text(), path.name, arch, headers=headers, options=options)
                kernels = [line for line in log.splitlines() if "spill" in line]
                spilled = [line for line in kernels if " 0 bytes spill stores, 0 bytes spill loads" not in line]
                found = f"{len(kernels)} kernels, {len(spilled)} spilled"
                print(f"{path.name} {variant} for {arch}: {found}", *spilled, flush=True)
                spilling += len(spilled)
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main(FORMATS if sys.argv[1] == "all" else (sys.argv[1],), sys.argv[2:]))
