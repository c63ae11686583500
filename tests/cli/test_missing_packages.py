"""The command line without NumPy, torch or transformers: help, and errors of one line."""

from __future__ import annotations

import pytest
from command import run_without

COMMAND = """
import runpy
sys.argv[0] = "ngramspec"
runpy.run_module("ngramspec", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["--version"]])
def test_help_needs_no_numpy(arguments):
    done = run_without(["numpy"], COMMAND, *arguments)
    assert done.stderr == ""
    assert done.returncode == 0
    assert "ngramspec" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "without", "remedy"),
    [
        (["corpus", "info", "nowhere.ngc"], "numpy", "pip install numpy"),
        (["bench"], "numpy", "pip install numpy"),
        (["bench"], "torch", "pip install torch transformers"),
        (["demo"], "rich", "pip install rich gguf accelerate"),
    ],
)
def test_a_command_names_the_missing_package_and_the_remedy(arguments, without, remedy):
    done = run_without([without], COMMAND, *arguments, check=False)
    assert done.returncode == 2
    command = " ".join(["ngramspec", *arguments[:2]])
    assert done.stderr == f"{command}: {without} is not installed; run: {remedy}\n"


def test_public_names_say_that_they_need_numpy():
    run_without(
        ["numpy"],
        """
import ngramspec
for name in ngramspec.__all__:
    try:
        getattr(ngramspec, name)
    except ModuleNotFoundError as error:
        assert str(error) == f"ngramspec.{name} needs numpy: pip install numpy", error
    else:
        assert name == "UnsupportedError", name
""",
    )
