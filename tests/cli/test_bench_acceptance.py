"""The command ``bench acceptance``."""

from __future__ import annotations

import json

from forced_text import tiny_loaded

from ngramspec.bench.acceptance import WAYS
from ngramspec.cli import main


def test_a_row_for_each_way_of_verifying(tmp_path, monkeypatch, capsys):
    loaded = tiny_loaded()
    monkeypatch.setattr("ngramspec.bench.models.load", lambda *args, **kwargs: loaded)
    out = tmp_path / "a.json"
    few = ["--temperatures", "0.5", "--draft-temperatures", "1", "--count", "1", "--tokens", "9"]
    assert main(["bench", "acceptance", *few, "--json", str(out)]) == 0
    assert "Algorithm 1" in capsys.readouterr().out
    assert [row["way"] for row in json.loads(out.read_text())["rows"]] == [*WAYS]
    assert main(["bench", "acceptance", "--gamma", "0"]) == 2
    assert "--gamma must" in capsys.readouterr().err
