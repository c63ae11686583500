"""The compiled part of the package; everything else is declared in pyproject.toml.

Set NGRAMSPEC_CHECKED=1 to compile with bounds checks, for a test run.
"""

import os
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

checked = os.environ.get("NGRAMSPEC_CHECKED") == "1"
extensions = [
    Extension(
        f"ngramspec._native.{path.stem}",
        [str(path)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=["-O3"],
    )
    for path in sorted(Path("ngramspec/_native").glob("*.pyx"))
]
setup(
    ext_modules=cythonize(
        extensions,
        compiler_directives={
            "language_level": 3,
            "boundscheck": checked,
            "wraparound": False,
            "cdivision": True,
            "freethreading_compatible": False,
        },
    )
)
