"""The command ``alpha``, and its former name."""

from __future__ import annotations

import json

import pytest
from command import exit_code
from forced_text import tiny_loaded

from ngramspec.cli import main
from ngramspec.measure.prompts import TYPES
from ngramspec.measure.traces import Prompt

FEW = ["--count", "2", "--train", "2", "--tokens", "9"]


@pytest.fixture
def loaded(monkeypatch):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    return loaded


def test_alpha_prints_and_writes(loaded, tmp_path, capsys):
    out = tmp_path / "o.json"
    command = ["alpha", *FEW, "--lenience", "0.3", "--top-k", "9", "--draft-model", "same"]
    command += ["--drafter", "trained-bigram", "--drafter", "copy"]
    assert main([*command, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    for word in ("alpha by position", "alpha under lenience", "trained-bigram", "total variation"):
        assert word in printed
    written = json.loads(out.read_text())
    rows = [row for row in written["rows"] if row["group"] == "all"]
    assert [(row["drafter"], row["temperature"]) for row in rows] == [
        (name, temperature)
        for temperature in (0, 1)
        for name in ("trained-bigram", "copy", "draft-model")
    ]
    same = [row["alpha"]["alpha"][0] for row in rows if row["drafter"] == "draft-model"]
    assert same[0] == pytest.approx(1, abs=1e-4)  # the target itself; top-k is the target's only
    assert written["settings"]["top_k"] == 9


def test_content_types_are_groups(loaded, monkeypatch, capsys):
    prompts = [Prompt(kind, "0", kind * 3) for kind in TYPES for _ in range(2)]
    monkeypatch.setattr("ngramspec.measure.prompts.content_prompts", lambda count: prompts)
    command = ["alpha", "--prompts", "types", "--count", "1", "--train", "4", "--tokens", "5"]
    assert main([*command, "--temperatures", "0", "--drafter", "copy", "--no-observed"]) == 0
    printed = capsys.readouterr().out
    assert "alpha by group" in printed
    assert "structured data" in printed


def test_draft_temperatures_are_those_of_the_default_drafters(loaded, capsys):
    command = ["--temperatures", "0.7", "--draft-temperatures", "0.5", *FEW]
    assert main(["alpha", *command]) == 0
    assert "ngram(order=4,sample=true,temperature=0.5)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "0"], "--count must be >= 1, got 0"),
        (["--lenience", "1.5"], "--lenience must be > 0.0 and <= 1.0, got 1.5"),
        (["--temperatures", "-1"], "--temperatures must be > 0.0"),
        (["--prompts", "nowhere.jsonl"], "--prompts: "),
        (["--drafter", "nonsense"], "nonsense"),
    ],
)
def test_bad_arguments_are_one_line(loaded, capsys, arguments, message):
    assert exit_code(["alpha", *FEW, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_draft_model_is_on_the_targets_device(loaded, monkeypatch, capsys):
    devices = []
    to = type(loaded.model).to

    def moved(model, device):
        devices.append(device)
        return to(model, device)

    monkeypatch.setattr(type(loaded.model), "to", moved)
    command = ["alpha", *FEW, "--device", "cpu", "--draft-model", "same", "--no-observed"]
    assert main([*command, "--temperatures", "0", "--drafter", "copy"]) == 0
    assert devices == ["cpu", "cpu"]
