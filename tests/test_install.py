"""The install without torch and transformers that docs/engines/index.md describes."""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from setuptools import Distribution
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError

import ngramspec

ROOT = Path(ngramspec.__file__).parent.parent
USE = """
import importlib.util
import sys
import numpy as np
from ngramspec import Corpus, SharedStore, build_drafter
assert importlib.util.find_spec("torch") is None
path, shared = sys.argv[1:]
corpus = Corpus.open(path)
corpus.verify()
assert len(corpus) == 9
store = SharedStore()
store["a"].add(np.arange(20, 30, dtype=np.int32))
store.save(shared)
loaded = SharedStore.load(shared)
assert loaded["a"].statistics().tokens == 10
drafter = build_drafter("auto", stores=[path, loaded["a"]])
for prompt, token in (([4, 5], 6), ([24, 25], 26)):
    assert drafter.start(np.array(prompt, np.int32)).propose(1).tokens.tolist() == [token]
"""


def documented() -> list[list[str]]:
    """The pip commands of the page, as a copy of the checkout is installed that is then removed."""
    page = (ROOT / "docs/engines/index.md").read_text(encoding="utf-8")
    section = page.split("## Without torch and transformers")[1].split("\n## ")[0]
    commands = [line.split() for line in re.findall(r"^pip (.+)$", section, re.MULTILINE)]
    return [[word for word in words if word != "-e"] for words in commands]


def test_the_page_says_how_to_install():
    assert documented() == [["install", "numpy", "xxhash"], ["install", "--no-deps", "."]]


@pytest.mark.parametrize(
    ("system", "release", "line"),
    [
        ("linux", {"ID": "ubuntu", "ID_LIKE": "debian"}, "sudo apt-get install build-essential"),
        ("linux", {"ID": "fedora"}, "sudo dnf install gcc python3-devel"),
        ("linux", {"ID": "void"}, "install gcc or clang"),
        ("darwin", {}, "xcode-select --install"),
    ],
)
def test_a_build_without_a_compiler_says_how_to_install_one(system, release, line, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["setup.py", "--quiet", "--name"])
    monkeypatch.setenv("NGRAMSPEC_COMPILE", "0")
    build = runpy.run_path("setup.py")["BuildExtensions"](Distribution())
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)

    def fails(build):
        raise CCompilerError("command 'cc' failed: No such file or directory")

    monkeypatch.setattr(build_ext, "run", fails)
    with pytest.raises(SystemExit, match=f"command 'cc' failed.*\n.* needs a C compiler.*{line}"):
        build.run()


@pytest.mark.slow
def test_stores_work_after_the_documented_install(tmp_path):
    pytest.importorskip("pydivsufsort")
    source, environment = tmp_path / "source", tmp_path / "environment"
    shutil.copytree(
        ROOT / "ngramspec", source / "ngramspec", ignore=shutil.ignore_patterns("*.so", "*.c")
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv.create(environment, with_pip=True)
    inherited = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}

    def run(*command: object) -> str:
        done = subprocess.run(
            [environment / "bin" / command[0], *command[1:]],
            cwd=source,
            env=inherited,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for words in documented():
        run("pip", *words)
    shutil.rmtree(source / "ngramspec")  # so that the installed package is used
    corpus = tmp_path / "c.ngc"
    ngramspec.Corpus.build([np.arange(9, dtype=np.int32)], corpus)
    run("python", "-c", USE, corpus, tmp_path / "s.ngs")
    assert '"tokens": 9' in run("ngramspec", "corpus", "info", corpus)
