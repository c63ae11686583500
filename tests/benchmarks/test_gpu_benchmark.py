"""The benchmark for GPUs, run small on a CPU."""

from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import main
from ngramspec.measure.tasks import NOTHING


def run_gpu(out, *arguments):
    code = main(["gpu", "--device", "cpu", "--tiny", "--out", str(out), *arguments])
    return code, json.loads((out / "gpu.json").read_text())


def test_the_gpu_benchmark_runs_small_on_a_cpu(tmp_path):
    few = ["--no-compile", "--new", "24", "--parts", "contenders", "syncs", "profile", "plots"]
    code, report = run_gpu(tmp_path, *few)
    assert code == 0, [report[part] for part in few[4:]]
    rows = {(row["task"], row["way"]): row for row in report["contenders"]["summary"]}
    assert rows["code_edit", "ngramspec"]["tokens_per_call"] > 2
    assert rows[NOTHING, "ngramspec"]["tokens_per_call"] < 1.2
    assert all(row["same"] == row["prompts"] for row in rows.values())
    assert {each["task"] for each in report["contenders"]["against"]} >= {"code_edit", NOTHING}
    assert [each["median"] for each in report["syncs"]] == [1, 1]
    assert (tmp_path / "e2e-ratio.png").stat().st_size > 10_000


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("benchmarks.syncs.host_syncs", None)
    code, report = run_gpu(tmp_path, "--new", "9", "--parts", "syncs", "profile")
    assert code == 1
    assert "NoneType" in report["syncs"]["error"]
    assert len(report["profile"]) == 6


@pytest.mark.slow
def test_the_whole_gpu_benchmark_runs_small_on_a_cpu(tmp_path):
    code, report = run_gpu(tmp_path)
    assert code == 0
    assert set(report["costs"]) == {"16", "64", "256"}
    assert len(report["costs"]["16"]) == 128
    ways = {row["way"] for row in report["contenders"]["summary"]}
    assert "plain, compiled" in ways
    assert (tmp_path / "cost.png").exists()
