"""The grid of lengths: its parts, what is left out, and a cell's line."""

from __future__ import annotations

import json

import pytest
from conftest import tiny_llama

from benchmarks.__main__ import main
from benchmarks.lengths import compared, line_of, part_of
from ngramspec.cli.options import UsageError
from ngramspec.measure import models

CELLS = [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]


def test_parts_are_all_cells_and_no_cell_twice():
    parts = [part_of(CELLS, f"{at}/3") for at in (1, 2, 3)]
    assert sorted(cell for part in parts for cell in part) == sorted(CELLS)
    assert part_of(CELLS, "1/1") == CELLS
    for wrong in ("0/2", "3/2", "x", "1", "-1/2"):
        with pytest.raises(UsageError, match="--cells must be I/N"):
            part_of(CELLS, wrong)


def test_all_fixed_lengths_and_trees_are_compared():
    named = [way.name for way in compared()]
    assert named[0] == "plain"
    assert len(named) == len(set(named)) == 10
    assert {"ngramspec", "ngramspec, chains", "prompt lookup 10", "ngramspec, tree 32"} <= {*named}


def test_a_line_says_how_near_the_best_the_defaults_are():
    speeds = {"plain": 1.0, "prompt lookup 10": 1.2, "ngramspec": 1.5, "ngramspec, tree 8": 1.6}
    rows = [{"way": way, "ratio": each} for way, each in speeds.items()]
    line = line_of({"task": "a", "length": 500, "summary": rows})
    assert "1.50 of the baseline; 0.938 of ngramspec, tree 8; 1.25 of prompt lookup" in line


def test_a_cell_is_measured_once(tmp_path, monkeypatch, capsys):
    model, loads = tiny_llama(positions=6000), []

    def load(*args, **kwargs):
        loads.append(args)
        return models.LoadedModel(model, None, "tiny")

    monkeypatch.setattr(models, "load", load)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text(json.dumps({"group": "a", "id": "1", "prompt": [5, 6, 7, 8] * 4}) + "\n")
    command = ["lengths", "--prompts", str(prompts), "--into", str(out), "--tasks", "a"]
    command += ["--max-new-tokens", "4", "--repeats", "1", "--prompts-per-cell", "1", "--lengths"]
    assert main([*command, "12"]) == 0
    assert main([*command, "12", "20"]) == 0
    assert len(loads) == 2
    assert main([*command, "12", "20"]) == 0
    assert len(loads) == 2
    cells = json.loads(out.read_text())["cells"]
    assert [each["length"] for each in cells] == [12, 20]
    assert "20 a:" in capsys.readouterr().out
    prompts.write_text(prompts.read_text().replace('"a"', '"b"'))
    assert main([*command, "13"]) == 2
