"""Builds the compiled kernels; all else about the package stands in pyproject.toml.

Each file of kernels is compiled once for every instruction set, and the extension chooses one when it is imported.
Without a compiler the package is installed all the same, and computes with NumPy.
"""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

NATIVE = Path("strata/cpu/native")
ONCE = ["module.c", "choose.c", "pool.c", "weights.c", "program.c", "rows_python.c", "tiles_python.c", "draw_python.c"]
"""Compiled for any processor of the kind."""
FOR_EACH_SET = [
    "fixed_super.c",
    "rows.c",
    "fixed.c",
    "attend.c",
    "tiles.c",
    "tiles_attend.c",
    "fixed_inputs.c",
    "draw.c",
]
"""Compiled for each set; what they offer to the others is a table named by `SET(...)` (sets.h).  What takes
longest comes first, so that nothing waits for it at the end."""

FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
# Python's own flags ask for debugging information, which takes a quarter of the compiler's time.
FLAGS += ["-g0"]
SETS = {"portable": []}
if sysconfig.get_platform().endswith(("x86_64", "amd64")):
    avx2 = ["-mavx2", "-mfma", "-mf16c"]
    SETS["avx2"] = avx2
    SETS["avx512"] = [*avx2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]


class BuildKernels(build_ext):
    """Gives every instruction set its own flags, and says what is lost where nothing can be compiled."""

    def run(self):
        super().run()
        missing = [ext.name for ext in self.extensions if not Path(self.get_ext_fullpath(ext.name)).exists()]
        if missing and not self.inplace:
            print(
                "strata: no compiled kernels (is a C compiler installed?): NumPy computes, several times slower",
                file=sys.stderr,
            )

    def build_extension(self, ext):
        def compiled(job):
            source, name = job
            return self.compiler.compile(
                [str(NATIVE / source)],
                output_dir=str(Path(self.build_temp) / name),
                macros=[*ext.define_macros, (f"KERNELS_{name.upper()}", "1")],
                include_dirs=[str(NATIVE)],
                extra_postargs=[*FLAGS, *SETS[name]],
                depends=ext.depends,
            )

        # Each is a process of its own, so that threads are enough to keep all processors busy.
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            for objects in threads.map(compiled, product(FOR_EACH_SET, SETS)):
                ext.extra_objects += objects
        super().build_extension(ext)


class BuildPython(build_py):
    """Puts the card's kernels, which lie at the top of the tree, beside the module that looks for them."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_tree("cuda", str(Path(self.build_lib) / "strata" / "gpu" / "cuda"))


kernels = Extension(
    "strata.cpu._kernels",
    sources=[str(NATIVE / source) for source in ONCE],
    depends=[str(path) for path in (*sorted(NATIVE.glob("*.h")), *(NATIVE / source for source in FOR_EACH_SET))],
    define_macros=[("Py_LIMITED_API", "0x030B0000"), *((f"HAVE_{name.upper()}", "1") for name in SETS)],
    extra_compile_args=[*FLAGS, "-pthread"],
    extra_link_args=["-pthread"],
    libraries=["m"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildKernels, "build_py": BuildPython},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
