"""``python -m benchmarks gpu`` on a CPU, with a tiny model."""

from __future__ import annotations

import json

import pytest

from benchmarks import gpu
from benchmarks.__main__ import main

TINY = ["gpu", "--device", "cpu", "--tiny", "--budget", "1000"]
TITLES = ("speedup of ngramspec over plain", "cost of 1, 8, 16, 32, 64 positions", "waits a step")


@pytest.mark.filterwarnings("ignore")
def test_every_part_runs_and_three_lines_sum_up(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    assert main([*TINY, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failed"] == {}
    assert found["unfinished"] == []
    assert found.keys() >= set(gpu.PARTS) - {"other_kernel"}  # needs CUDA
    printed = capsys.readouterr().out.splitlines()[-3:]
    assert printed == found["lines"]
    for line, title in zip(printed, TITLES, strict=True):
        assert line.startswith(title)
    tasks = {row["task"] for row in found["contenders"]["summary"]}
    assert tasks >= {*gpu.TASKS, gpu.COPY}
    assert all(row["same"] == row["prompts"] for row in found["contenders"]["summary"])
    assert {cell["outcome"] for cell in found["same_text"]} == {"identical"}
    assert not [row for row in found["attention"] if "error" in row]


def test_without_traces_the_rest_is_measured(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    given = [*TINY, "--traces", "nowhere.jsonl", "--parts", "contenders", "--json", str(out)]
    assert main(given) == 1
    found = json.loads(out.read_text())
    assert list(found["failed"]) == ["traces"]
    assert {row["task"] for row in found["contenders"]["summary"]} == {gpu.COPY, gpu.NOTHING}
    assert "failed: traces: FileNotFoundError" in capsys.readouterr().err
