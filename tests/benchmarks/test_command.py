"""``python -m benchmarks``: the benchmarks that it lists, and their options."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest
from command import exit_code

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
