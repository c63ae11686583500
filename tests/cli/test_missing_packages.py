"""The command line without NumPy, torch or transformers: help, and errors of one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
import runpy, sys
hidden = sys.argv[1]
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=hidden)
sys.meta_path.insert(0, Missing())
sys.argv = ["ngramspec", *sys.argv[2:]]
runpy.run_module("ngramspec", run_name="__main__", alter_sys=True)
"""


def ngramspec(*arguments: str, without: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT, without, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["--version"]])
def test_help_needs_no_numpy(arguments):
    done = ngramspec(*arguments, without="numpy")
    assert done.stderr == ""
    assert done.returncode == 0
    assert "ngramspec" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "without", "remedy"),
    [
        (["corpus", "info", "nowhere.ngc"], "numpy", "pip install numpy"),
        (["bench"], "numpy", "pip install numpy"),
        (["bench"], "torch", "pip install torch transformers"),
    ],
)
def test_a_command_names_the_missing_package_and_the_remedy(arguments, without, remedy):
    done = ngramspec(*arguments, without=without)
    assert done.returncode == 2
    command = " ".join(["ngramspec", *arguments[:2]])
    assert done.stderr == f"{command}: {without} is not installed; run: {remedy}\n"


NAMES = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name="numpy")
sys.meta_path.insert(0, Missing())
import ngramspec
for name in ngramspec.__all__:
    try:
        getattr(ngramspec, name)
    except ModuleNotFoundError as error:
        assert str(error) == f"ngramspec.{name} needs numpy: pip install numpy", error
    else:
        assert name == "UnsupportedError", name
"""


def test_public_names_say_that_they_need_numpy():
    subprocess.run([sys.executable, "-W", "ignore", "-c", NAMES], check=True)
