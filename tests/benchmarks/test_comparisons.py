"""The comparisons with the baseline, run small with a tiny model: what they write."""

from __future__ import annotations

import json

import pytest
from forced_text import IDS, tiny_loaded

from benchmarks.__main__ import main
from ngramspec.measure.traces import Trace, write_traces

FEW = ["--repeats", "1", "--max-new-tokens", "6"]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a benchmark with a tiny model; returns what it wrote."""

    def run(name, *arguments):
        monkeypatch.setattr(f"benchmarks.{name}.load", lambda *args: tiny_loaded())
        out = tmp_path / "out.json"
        assert main([name, *arguments, *FEW, "--json", str(out)]) == 0
        written = json.loads(out.read_text())
        assert written["command"].startswith(f"python -m benchmarks {name} ")
        assert written["settings"]["max_new_tokens"] == 6
        assert written["where"]["packages"]["ngramspec"]
        assert "commit" in written
        return written["rows"]

    return run


@pytest.fixture
def traces(tmp_path):
    import numpy as np

    path = tmp_path / "traces.jsonl"
    ids = np.array(IDS, np.int32)
    write_traces(path, [Trace("g", str(at), ids[at:], ids[:9]) for at in range(4)])
    return str(path)


def test_batches(run, traces):
    options = ["--traces", traces, "--groups", "g", "nothing", "--sizes", "1", "3"]
    rows = run("batch", *options, "--longest", "30", "--dtype", "float32")
    assert [(row["group"], row["batch"]) for row in rows] == [
        *(("g", 1), ("g", 3), ("nothing", 1), ("nothing", 3))
    ]
    for row in rows:
        assert row["same_rows"] == row["batch"]
        assert row["prompt_tokens"] == 30
        assert set(row["seconds"]) == {"plain", "ours"}
        assert row["worst"] == row["ratio"] > 0  # there is one repeat
