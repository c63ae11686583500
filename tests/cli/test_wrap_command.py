"""The command ``wrap``."""

from __future__ import annotations

import json

import pytest
from command import exit_code
from wrapping import save_tiny

from ngramspec import Speculator


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("saved") / "tiny")


def test_the_command_says_what_it_wrote_and_how_to_use_it(folder, tmp_path, capsys):
    out = tmp_path / "a model"
    arguments = ["--gamma", "3", "--gamma-max", "9", "--drafter", "copy", "--policy", "priority"]
    assert exit_code(["wrap", str(folder), str(out), *arguments]) == 0
    printed = capsys.readouterr().out
    assert f"{out}: LlamaForCausalLM, speculative\n" in printed
    assert "1 file, hard links" in printed
    assert f"AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)" in printed
    assert f"transformers serve '{out}' --trust-remote-code" in printed
    assert json.loads((out / "custom_generate/ngramspec.json").read_text()) == {
        "drafter": "copy",
        "gamma": 3,
        "gamma_max": 9,
        "policy": "priority",
    }
    assert exit_code(["wrap", str(folder), str(tmp_path / "b"), "--copy"]) == 0
    assert "1 file, copies" in capsys.readouterr().out


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
