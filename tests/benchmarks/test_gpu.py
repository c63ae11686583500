"""``python -m benchmarks gpu`` on a CPU, with a tiny model."""

from __future__ import annotations

import argparse
import json

import pytest
import torch

from benchmarks import gpu
from benchmarks.__main__ import main
from ngramspec.measure.bench import by_model
from ngramspec.measure.forwards import forced_model
from ngramspec.measure.tasks import Prompt

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


def test_costs_are_measured_without_a_forced_text():
    model = gpu.build(argparse.Namespace(device="cpu", tiny=True, compiled=False))
    prompt = Prompt("edit", "short", (1, 2, 3), (4, 5))
    with forced_model(model, len(prompt.ids) + len(prompt.text)) as set_text:
        scene = gpu.Scene(model, [prompt], by_model(set_text), True)
        scene.forcing(prompt)
        for found in gpu.costs(scene):
            scene.forcing(prompt)  # as another part would
            assert all(each.keys() == set(gpu.WIDTHS) for each in found.values())
    assert tuple(found) == scene.contexts


def test_folded_heads_attend_to_the_same_keys():
    torch.manual_seed(0)
    n, keys = 5, 12
    q = torch.randn(1, 32, n, 128)
    k, v = torch.randn(2, 1, 8, keys, 128)
    mask = torch.ones(n, keys, dtype=torch.bool).tril(keys - n)[None, None]
    folded, repeated = (gpu.attend_as(way, q, k, v, mask) for way in ("folded", "repeated"))
    torch.testing.assert_close(folded, repeated)


def test_compiled_forwards_are_compared_with_the_compiled_baseline():
    ratios = {"plain": 1.0, "plain, compiled": 2.0, "ngramspec, compiled": 3.0}
    rows = [{"task": "edit", "way": way, "ratio": ratio} for way, ratio in ratios.items()]
    graphs = {"plain, compiled": {"captures": 2}, "ngramspec, compiled": {"captures": 8}}
    assert gpu.lines({"compiled": {"summary": rows, "graphs": graphs}}) == [
        "speedup of ngramspec, compiled over plain, compiled and plain: edit 1.50, 3.00",
        "CUDA graphs: plain, compiled 2; ngramspec, compiled 8",
    ]
    assert gpu.lines({"compiled": {"summary": rows[:2]}}) == []
