"""Which kernels compute, by what is asked for and by what was compiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strata.cpu.choice import choose, module, runnable
from strata.cpu.device import open_cpu
from strata.errors import ConfigError


def test_the_best_that_runs_is_taken_unless_another_is_asked_for() -> None:
    best = runnable()[-1]
    assert choose(environ={}).name == best
    for name in runnable():
        assert choose(environ={"STRATA_KERNELS": name}).name == name
        assert choose(name, environ={"STRATA_KERNELS": best}).name == name


def test_kernels_that_are_not_known_are_refused_by_name_and_none_is_no_name() -> None:
    for name in ("amx", "AVX2 ", "sse"):
        with pytest.raises(ConfigError, match="not known; use one of numpy"):
            choose(environ={"STRATA_KERNELS": name})
    assert choose(environ={"STRATA_KERNELS": ""}).name == runnable()[-1]


def test_kernels_that_cannot_run_here_are_refused() -> None:
    for name in {"portable", "avx2", "avx512"} - set(runnable()):
        with pytest.raises(ConfigError, match="can't run here"):
            open_cpu(1, kernels=name)


def test_a_device_says_which_kernels_it_computes_with() -> None:
    for name in runnable():
        device = open_cpu(1, kernels=name)
        device.close()
        assert device.device == f"cpu ({name}, 1 thread)"


@pytest.mark.skipif(module() is None, reason="no kernels were compiled here")
def test_the_best_set_is_one_that_the_system_lets_run() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    sets = runnable()
    assert sets[:2] == ["numpy", "portable"]
    assert ("avx2" in sets) == {"avx2", "fma", "f16c"}.issubset(flags)
    assert ("avx512" in sets) == {"avx512f", "avx512bw", "avx512dq", "avx512vl"}.issubset(flags)


def test_without_compiled_kernels_it_computes_on_numpy_and_says_so() -> None:
    script = (
        "import logging, sys; logging.basicConfig(format='%(message)s')\n"
        "sys.modules['strata.cpu._kernels'] = None\n"
        "from strata.cpu.device import open_cpu\n"
        "print(open_cpu(1).device)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "cpu (numpy, 1 thread)\n"
    assert run.stderr.count("\n") == 1
    assert "several times slower: install a C compiler" in run.stderr
