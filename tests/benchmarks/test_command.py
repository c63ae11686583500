"""``python -m benchmarks``: what it lists, its options, and ``models`` on a tiny model."""

from __future__ import annotations

import ast
import json
from importlib import import_module

import gguf_file
import pytest
from command import exit_code, run_without

from benchmarks.__main__ import BENCHMARKS, MODULES, listing, main
from benchmarks.harness import ROOT


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_has_its_help(name, capsys):
    assert exit_code([name, "--help"], main) == 0
    printed = capsys.readouterr().out
    assert f"usage: python -m benchmarks {name}" in printed
    if name != "figures":  # it writes several files
        module = import_module(MODULES[name])
        assert "--json" in printed or "--out" in printed
        assert module.__doc__.partition("\n")[0] in printed


def test_without_a_name_all_benchmarks_are_listed(capsys):
    assert exit_code([], main) == 2
    assert exit_code(["no-such-benchmark"], main) == 2
    assert capsys.readouterr().err == 2 * f"{listing()}\n"
    assert exit_code(["--help"], main) == 0
    assert all(f"  {name} " in listing() for name in MODULES)


def test_every_module_with_a_command_is_listed():
    found = set()
    for path in (ROOT / "benchmarks").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if {"add_arguments", "run"} <= names:
            found.add(".".join(path.relative_to(ROOT / "benchmarks").with_suffix("").parts))
    assert found == set(BENCHMARKS)


def test_the_benchmark_of_llama_cpp_needs_no_torch():
    run_without(("torch",), "import benchmarks.engines.llama")


def test_the_engine_and_its_twin_draft_alike(tmp_path, monkeypatch):
    """The later prompts share a beginning that has become a kind with its own calibration."""
    monkeypatch.setattr("benchmarks.drafters.STEPS", 3)
    command, out = ["drafters", "--twin", "--sizes", "16", "17", "18"], tmp_path / "out.json"
    assert exit_code([*command, "--json", str(out)], main) == 0
    readings = json.loads(out.read_text())["readings"]
    drafted = {name: [] for name in ("auto", "twin (Python)")}
    for each in readings:
        drafted[each["drafter"]].append((each["tokens"], each["drafted"]))
    assert drafted["auto"] == drafted["twin (Python)"] != []


def test_every_way_generates_the_baselines_text_and_a_run_is_continued(tmp_path, capsys):
    gguf_file.write(tmp_path / "tiny.gguf")
    out = tmp_path / "models.json"

    def rows(*options):
        command = ["models", "--model", str(tmp_path / "tiny.gguf"), "--dtype", "float32"]
        command += ["--max-new-tokens", "12", "--json", str(out), "--prompts-per-task", "1"]
        assert exit_code([*command, *options], main) == 0
        return json.loads(out.read_text())["rows"]

    first = rows("--tasks", "tools")
    assert [row["mode"] for row in first] == ["greedy", "sampled"]
    for row in first:
        ways = {"plain", "lookup 3", "lookup", "ours"}
        assert row["tokens_per_second"].keys() == row["same_as_plain"].keys() == ways
        assert row["same_as_plain"]["ours"]
        assert row["model"] == "tiny"
    assert all(first[0]["same_as_plain"].values())
    assert rows("--tasks", "tools") == first  # with the same times: nothing is measured again
    assert rows("--tasks", "chat", "--seconds", "0") == first
    assert "not done: run it again" in capsys.readouterr().out
    *before, batch = rows("--tasks", "tools", "--batch", "2", "--mode", "greedy")
    assert before == first
    assert batch["batch"] == 2
    assert batch["tokens_per_second"].keys() == {"plain", "ours"}
    assert batch["same_as_plain"]["ours"]
    long = rows("--texts", "long", "--lengths", "300", "--tasks", "answer", "--mode", "greedy")[-1]
    assert long["task"] == "answer 300"
    assert long["prompt_tokens"] in range(300, 450)
