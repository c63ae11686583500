"""The benchmark for GPUs, run small on a CPU."""

from __future__ import annotations

import json

from benchmarks.__main__ import main
from ngramspec.measure.tasks import NOTHING


def run_gpu(out, *arguments):
    command = ["gpu", "--device", "cpu", "--tiny", "--repeats", "1", "--per-task", "1"]
    code = main([*command, "--tasks", "edit", "--json", str(out), *arguments])
    return code, json.loads(out.read_text())


def test_the_gpu_benchmark_runs_small_on_a_cpu(tmp_path):
    few = ["--no-compile", "--width", "8", "--new", "24", "--parts", "contenders", "syncs"]
    code, report = run_gpu(tmp_path / "gpu.json", *few)
    assert code == 0, [report[part] for part in few[-2:]]
    rows = {(row["task"], row["way"]): row for row in report["contenders"]["summary"]}
    assert rows["edit", "ngramspec"]["tokens_per_call"] > 1.3
    assert rows[NOTHING, "ngramspec"]["tokens_per_call"] < 1.2
    assert all(row["same"] == row["prompts"] for row in rows.values())
    assert [each["median"] for each in report["syncs"]] == [1, 1]


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.syncs.host_syncs", None)
    code, report = run_gpu(tmp_path / "gpu.json", "--new", "9", "--parts", "syncs", "profile")
    assert code == 1
    assert "NoneType" in report["syncs"]["error"]
    assert len(report["profile"]) == 6
