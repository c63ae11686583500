"""The command ``wrap``."""

from __future__ import annotations

import json

import pytest
from command import exit_code
from wrapping import save_tiny

from ngramspec import Speculator
from ngramspec.cli.wrap import group_line
from ngramspec.wrap.folder import Group


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("saved") / "tiny")


def test_the_command_says_what_it_wrote_and_how_to_use_it(folder, tmp_path, capsys):
    out = tmp_path / "a model"
    arguments = ["--gamma", "3", "--gamma-max", "9", "--drafter", "copy", "--policy", "priority"]
    assert exit_code(["wrap", str(folder), str(out), *arguments]) == 0
    printed = capsys.readouterr().out
    assert f"{out}: LlamaForCausalLM, speculative\n" in printed
    assert "1 file, 101 kB, hard links" in printed
    assert f"AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)" in printed
    assert f"transformers serve '{out}' --trust-remote-code" in printed
    assert json.loads((out / "custom_generate/ngramspec.json").read_text()) == {
        "drafter": "copy",
        "gamma": 3,
        "gamma_max": 9,
        "policy": "priority",
    }
    assert exit_code(["wrap", str(folder), str(tmp_path / "b"), "--copy"]) == 0
    assert "1 file, 101 kB, copies" in capsys.readouterr().out


def test_stores_by_option(folder, tmp_path, capsys):
    out = tmp_path / "shared"
    assert exit_code(["wrap", str(folder), str(out), "--shared"]) == 0
    assert "stores [{'namespace': 'default', 'write': 'outputs'}]" in capsys.readouterr().out
    speculator = Speculator.from_pretrained(out)
    assert repr(speculator.stores) == "(SharedStore()['default'],)"
    assert speculator.to_dict()["stores"] == [{"namespace": "default", "write": "outputs"}]
    arguments = ["--corpus", str(tmp_path / "none.ngc")]
    assert exit_code(["wrap", str(folder), str(tmp_path / "b"), *arguments]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{in}"], "the following arguments are required: OUT_DIR"),
        (["{in}", "{out}", "--gamma", "0"], "gamma must be in 1..64, got 0"),
        (["{in}", "{out}", "--gamma", "65"], "gamma must be in 1..64, got 65"),
        (["{in}", "{out}", "--gamma-max", "5000"], "gamma_max must be in 1..4096, got 5000"),
        (["{in}", "{out}", "--drafter", "parrot"], "'parrot' is no drafter's name"),
        (["{in}", "{out}", "--policy", "luck"], "policy must be 'value' or 'priority', got"),
        (["./nowhere", "{out}"], "MODEL_DIR: there is no folder nowhere"),
        (["{in}", "{in}"], "OUT_DIR: "),
        (["{in}", "/proc/out"], "cannot read or write /proc/out: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line(folder, tmp_path, arguments, message, capsys):
    places = {"in": folder, "out": tmp_path / "out"}
    assert exit_code(["wrap", *(each.format(**places) for each in arguments)]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (2.5e9, "2.5 GB")],
)
def test_sizes(size, text):
    assert group_line(Group(2, int(size))) == f"2 files, {text}"
