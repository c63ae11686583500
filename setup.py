"""The compiled part of the package; everything else is declared in pyproject.toml.

Set NGRAMSPEC_CHECKED=1 to compile with bounds checks, for a test run; NGRAMSPEC_SYMBOLS=1 to keep
debug information and symbols, for a debugger or a profiler; NGRAMSPEC_SANITIZE=1 for sanitizers and
allocations that fail when told to (``make sanitize``); NGRAMSPEC_COMPILE=0 to install without
compiling, where ``build_ext`` compiles in place at the same time.
"""

import os
import platform
import re
import sys
import tomllib
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError, PlatformError

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
address, tag = project["urls"]["Repository"], f"v{project['version']}"


def absolute(link: re.Match[str]) -> str:
    """A link or picture of README, which the package index shows without the other files."""
    return f"{address}/{'raw' if link[1].endswith('.svg') else 'blob'}/{tag}/{link[1]}"


def compiler_install() -> str:
    """How to install a C compiler, and the headers of Python, on this system."""
    if sys.platform == "darwin":
        return "run: xcode-select --install"
    try:
        release = platform.freedesktop_os_release()
    except OSError:  # not Linux, or one that does not say which it is
        release = {}
    kinds = {release.get("ID"), *release.get("ID_LIKE", "").split()}
    if kinds & {"debian", "ubuntu"}:
        return "run: sudo apt-get install build-essential python3-dev"
    if kinds & {"fedora", "rhel"}:
        return "run: sudo dnf install gcc python3-devel"
    return "install gcc or clang, and your system's package of the headers"


class BuildExtensions(build_ext):
    """The usual build, which says how to install a compiler if it fails without one."""

    def run(self) -> None:
        """Compile the extensions."""
        try:
            super().run()
        except (CCompilerError, PlatformError) as error:
            cause = str(error).partition("\n")[0]
            needs = "building ngramspec needs a C compiler and the headers of Python"
            sys.exit(f"{cause}\n{needs}; {compiler_install()}")


checked = os.environ.get("NGRAMSPEC_CHECKED") == "1"
# No fused multiply-adds: every machine rounds as the twin does.
compile_args, link_args = ["-O3", "-ffp-contract=off"], []
if sys.platform == "win32":  # Microsoft's compiler, which fuses nothing under /fp:precise
    compile_args = ["/O2", "/fp:precise"]
elif os.environ.get("NGRAMSPEC_SYMBOLS") == "1":
    compile_args += ["-g"]
else:
    compile_args += ["-g0"]  # after Python's own -g
    if sys.platform == "linux":  # Apple's linker has no such option
        link_args += ["-Wl,--strip-all"]
if os.environ.get("NGRAMSPEC_SANITIZE") == "1":
    link_args = ["-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"]
    header = Path("tests/sanitize/allocation.h").resolve()
    compile_args += ["-O1", "-g", "-fno-omit-frame-pointer", "-include", str(header), *link_args]
compiled = os.environ.get("NGRAMSPEC_COMPILE") != "0"
extensions = [
    Extension(
        f"ngramspec._native.{path.stem}",
        [str(path)],
        include_dirs=[numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    for path in sorted(Path("ngramspec/_native").glob("*.pyx"))
    if compiled
]
readme = Path("README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"(?<=\]\()(?!\w+:|#)([^)\s]+)", absolute, readme),
    long_description_content_type="text/markdown",
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=cythonize(
        extensions,
        compiler_directives={
            "language_level": 3,
            "boundscheck": checked,
            "wraparound": False,
            "cdivision": True,
            "freethreading_compatible": False,
        },
    ),
)
