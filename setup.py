"""Builds the compiled kernels; all else about the package stands in pyproject.toml.

Each file of kernels is compiled once for every instruction set, and the extension chooses one when it is imported.
Without a compiler the package is installed all the same, and computes with NumPy.
"""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("strata/cpu/native")
ONCE = ["module.c", "choose.c", "pool.c", "weights.c", "program.c", "rows_python.c", "tiles_python.c"]
"""Compiled for any processor of the kind."""
FOR_EACH_SET = ["attend.c", "fixed.c", "rows.c", "tiles.c", "tiles_attend.c"]
"""Compiled for each set; what they offer to the others is a table named by `SET(...)` (sets.h)."""

FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]
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
        for name, flags in SETS.items():
            ext.extra_objects += self.compiler.compile(
                [str(NATIVE / source) for source in FOR_EACH_SET],
                output_dir=str(Path(self.build_temp) / name),
                macros=[*ext.define_macros, (f"KERNELS_{name.upper()}", "1")],
                include_dirs=[str(NATIVE)],
                extra_postargs=[*FLAGS, *flags],
                depends=ext.depends,
            )
        super().build_extension(ext)


kernels = Extension(
    "strata.cpu._kernels",
    sources=[str(NATIVE / source) for source in ONCE],
    depends=[str(path) for path in sorted(NATIVE.glob("*.h"))],
    define_macros=[("Py_LIMITED_API", "0x030B0000"), *((f"HAVE_{name.upper()}", "1") for name in SETS)],
    extra_compile_args=[*FLAGS, "-pthread"],
    extra_link_args=["-pthread"],
    libraries=["m"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[kernels],
    cmdclass={"build_ext": BuildKernels},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
