"""The command ``bench``."""

from __future__ import annotations

import json

import pytest
from forced_text import IDS, tiny_loaded

from ngramspec.cli import main
from ngramspec.measure.calls import PLAIN
from ngramspec.measure.tasks import NOTHING


@pytest.fixture
def loaded(monkeypatch):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    return loaded


def test_bench_prints_and_writes(loaded, tmp_path, capsys):
    traces, out = tmp_path / "t.jsonl", tmp_path / "o.json"
    lines = [{"group": group, "id": 0, "prompt": list(IDS)} for group in ("chat", "summarization")]
    traces.write_text("\n".join(map(json.dumps, lines)))
    command = ["bench", "--prompts", str(traces), "--tasks", "summarization", "nothing"]
    command += ["--lengths", "30", "90", "--repeats", "1", "--max-new-tokens", "24", "--least", "9"]
    command += ["--lookup", "5", "--speculator", '{"gamma": 3}']
    command += ["--speculator", '{"drafter": "mtp"}']
    assert main([*command, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "skipped: ngramspec, drafter mtp: " in printed
    for word in ("summarization, 1 prompt of 90", "prompt lookup 5", "ngramspec, gamma 3"):
        assert word in printed
    assert "chat," not in printed
    written = json.loads(out.read_text())
    assert {row["length"] for row in written["summary"]} == {30, 90}
    assert {row["task"] for row in written["summary"]} == {"summarization", NOTHING}
    assert {each["way"] for each in written["calls"]} == {
        *(PLAIN, "prompt lookup 5", "ngramspec", "ngramspec, gamma 3")
    }
    assert all(row["same"] == row["prompts"] for row in written["summary"])
    assert written["command"].startswith("ngramspec")
    assert written["settings"]["repeats"] == 1


def test_bench_has_texts_of_its_own(loaded, capsys):
    command = ["bench", "--tasks", "code_edit", "--repeats", "1", "--max-new-tokens", "9"]
    assert main([*command, "--least", "200", "--lookup"]) == 0
    assert "code_edit: 1 prompt left out" in capsys.readouterr().out


def test_prompts_of_a_length_are_chosen(loaded, tmp_path, capsys):
    path, out = tmp_path / "p.jsonl", tmp_path / "o.json"
    path.write_text(f"[1, 2, 3]\n{[*IDS]}\n")
    command = ["bench", "--prompts", str(path), "--tasks", "p", "--prompt-tokens", "9", "99"]
    command += ["--max-new-tokens", "4", "--least", "2", "--lookup", "--json", str(out)]
    assert main(command) == 0
    path.write_text('{"id": 3, "prompt": [1, 2]}\n[3]\n{"id": 3, "prompt": [4]}\n')
    assert main(command) == 2
    assert "--prompts: 2 prompts of p have the id 3" in capsys.readouterr().err
    assert {each["prompt"] for each in json.loads(out.read_text())["calls"]} == {"2"}
