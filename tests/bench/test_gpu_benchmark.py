"""The benchmark for GPUs, run small on a CPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from ngramspec.bench.tasks import NOTHING

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


def run_gpu(monkeypatch, out, *arguments):
    spec = importlib.util.spec_from_file_location("gpu", GPU)
    gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu)
    command = ["gpu.py", "--device", "cpu", "--tiny", "--out", str(out), *arguments]
    monkeypatch.setattr(sys, "argv", command)
    code = gpu.main()
    return code, json.loads((out / "gpu.json").read_text())


def test_the_gpu_benchmark_runs_small_on_a_cpu(monkeypatch, tmp_path):
    few = ["--no-compile", "--new", "24", "--parts", "contenders", "syncs", "profile", "plots"]
    code, report = run_gpu(monkeypatch, tmp_path, *few)
    assert code == 0, [report[part] for part in few[4:]]
    rows = {(row["task"], row["way"]): row for row in report["contenders"]["summary"]}
    assert rows["code_edit", "ngramspec"]["tokens_per_call"] > 2
    assert rows[NOTHING, "ngramspec"]["tokens_per_call"] < 1.2
    assert all(row["same"] == row["prompts"] for row in rows.values())
    assert {each["task"] for each in report["contenders"]["against"]} >= {"code_edit", NOTHING}
    assert [each["median"] for each in report["syncs"]] == [1, 1]
    assert (tmp_path / "e2e-ratio.png").stat().st_size > 10_000


def test_a_part_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    monkeypatch.setattr("ngramspec.bench.syncs.host_syncs", None)
    code, report = run_gpu(monkeypatch, tmp_path, "--new", "9", "--parts", "syncs", "profile")
    assert code == 1
    assert "NoneType" in report["syncs"]["error"]
    assert len(report["profile"]) == 6


@pytest.mark.slow
def test_the_whole_gpu_benchmark_runs_small_on_a_cpu(monkeypatch, tmp_path):
    code, report = run_gpu(monkeypatch, tmp_path)
    assert code == 0
    assert set(report["costs"]) == {"16", "64", "256"}
    assert len(report["costs"]["16"]) == 128
    ways = {row["way"] for row in report["contenders"]["summary"]}
    assert "plain, compiled" in ways
    assert (tmp_path / "cost.png").exists()
