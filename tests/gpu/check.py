"""What `make gpu-check` does beyond the tests: sanitizers, barriers taken out, threads backward, NVIDIA's compiler, and
which lines the tests run.

With an argument, `all`: every barrier of every file is taken out in turn, and not one of each kind alone.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fakes
from attrs import field, frozen
from sanitized import BARRIER

HERE = Path(__file__).parent
ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")
CANARIES = (
    *(("linear.cu", "2"), ("tensor.cu", "1"), ("draw.cu", "1")),
    *(("chunk.cu", "1"), ("chunk_tensor.cu", "1"), ("kernel.cuh", "1")),
)
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}


@frozen
class Check:
    """A Python program that must end with 0; `failing`: one that must not, and must say this."""

    what: str
    arguments: tuple[str | Path, ...]
    environ: dict[str, str] = field(factory=dict)
    failing: str | None = None

    def holds(self) -> bool:
        """Says how it went."""
        started = time.monotonic()
        done = self._run()
        said = done.stdout + done.stderr
        good = done.returncode == 0 if self.failing is None else done.returncode != 0 and self.failing in said
        print(f"{'passed' if good else 'FAILED'}: {self.what} ({time.monotonic() - started:.0f} s)", flush=True)
        if not good:
            print(said[-6000:], flush=True)
        return good

    def _run(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, self.arguments)]
        if "tsan" in self.environ.get("LD_PRELOAD", ""):
            # Its shadow memory has fixed places, which addresses at random may hit.
            command = ["setarch", platform.machine(), "-R", *command]
        environ = {**os.environ, **self.environ}
        return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=900, check=False)


def sanitized(what: str, sanitizer: str, *canary: str) -> Check:
    environ = {
        # And C++'s own: PyCUDA, which throws, comes later.
        "LD_PRELOAD": f"{library(LIBRARIES[sanitizer])} {library('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "halt_on_error=1",
    }
    return Check(what, (HERE / "sanitized.py", sanitizer, *canary), environ, "data race" if canary else None)


def library(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).resolve())


def every_barrier() -> Iterator[tuple[str, str]]:
    from strata.gpu.cubins import sources

    for path in sorted(sources().iterdir()):
        for number, _ in enumerate(BARRIER.finditer(path.read_text()), 1):
            yield path.name, str(number)


def checks(canaries: Iterator[tuple[str, str]]) -> Iterator[Check]:
    twins = [HERE / f"test_gpu_{name}.py" for name in ("kernels", "attention", "turning", "draw", "cublas", "twins")]
    kernels = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *twins)
    yield Check("threads backward", kernels, {"EMU_BACKWARD": "1"})
    yield Check("tests run nearly all lines of strata/gpu", (HERE / "covered.py",))
    yield sanitized("addresses and undefined behaviour", "address")
    yield sanitized("races", "thread")
    for arch in ARCHITECTURES:
        yield Check(f"compiled for {arch}, nothing spilled", (HERE / "compile_all.py", "all", arch))
    for file, number in canaries:
        yield sanitized(f"{file} without barrier {number} is found out", "thread", file, number)


def main(*arguments: str) -> int:
    if why := fakes.missing():
        print(f"the GPU engine was not checked: {why} (`make gpu-deps`)")
        return 0
    canaries = every_barrier() if arguments == ("all",) else iter(CANARIES)
    fakes.fakes()  # before two at once want to build them
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(Check.holds, checks(canaries)))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
