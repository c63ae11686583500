"""How large the project is, and how much of it a greedy call uses."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ngramspec"
SUFFIXES = (".py", ".pyx", ".pxd", ".pxi", ".pyi")
# Each measure with its required maximum, and with the one that holds until that is reached.
BUDGET: dict[str, tuple[int, int | None]] = {
    "shipped lines": (31_500, 37_210),
    "shipped files": (160, None),
    "lines of tests": (36_000, 44_750),
    "lines of benchmarks": (7_500, None),
    "modules of a greedy call": (46, None),
    "lines of a greedy call": (8_500, 9_330),
    "types of a greedy step": (18, None),
    "calls of an undrafted step": (90, None),
    "constants that are not tuned": (20, None),
    "import circles": (0, None),
}
GREEDY_CALLS = """
import itertools, json, sys
from pathlib import Path
from statistics import median
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from ngramspec import Speculator
from ngramspec.decoding import loop

loop.perf_counter = itertools.count().__next__  # all forwards take equally long
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=97, num_hidden_layers=1, **sizes)).eval()
forward, prompt, types = model.forward, torch.arange(5, 15)[None], set()
repeats = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 5, 6, 9, 8, 5, 6]])  # some drafts are rejected
greedy = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def calls_by_step(speculator, prompt=prompt, types=None):
    # The Python calls after each forward, and the types that steps after the prefill use.
    counts, since, inside = [], set(), False

    def count(frame, event, argument):
        if event != "call":
            return
        counts[-1] += not inside
        owner = type(frame.f_locals.get("self"))
        if len(counts) > 2 and "ngramspec." in str(owner.__module__):
            since.add((owner.__module__, owner.__qualname__))

    def counted(*args, **kwargs):
        nonlocal inside
        inside = True
        outputs = forward(*args, **kwargs)
        counts.append(0)
        if types is not None:  # what follows the last forward is no whole step
            types.update(since)
        inside = False
        return outputs

    counts.append(0)
    model.forward = counted
    sys.setprofile(count)
    model.generate(prompt, custom_generate=speculator, max_new_tokens=60, **greedy)
    sys.setprofile(None)
    return median(counts[3:-1])


def loaded():
    names = [name for name in sys.modules if name.split(".")[0] == "ngramspec"]
    files = {str(sys.modules[name].__file__) for name in names}
    return [Path(file) for file in files if file.endswith(".py")]


model.generate(prompt, custom_generate=Speculator(), max_new_tokens=16, **greedy)
files = loaded()
undrafted, baseline = calls_by_step(Speculator("none")), calls_by_step(None)
calls_by_step(Speculator(gamma_max=4), repeats, types)
print(json.dumps({
    "modules of a greedy call": len(files),
    "lines of a greedy call": sum(len(file.read_text().splitlines()) for file in files),
    "types of a greedy step": len(types),
    "their names": sorted(types),
    "calls of an undrafted step": undrafted,
    "calls of a step of the baseline": baseline,
}))
"""


def lines(folder: Path) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in sources(folder))


def sources(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.suffix in SUFFIXES]


@cache
def greedy_calls() -> dict[str, Any]:
    command = [sys.executable, "-c", GREEDY_CALLS]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def imports() -> dict[str, set[str]]:
    """The modules of the package that each one imports, except inside functions."""
    files = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in modules()}
    found = {}
    for name, file in files.items():
        nodes, named = list(ast.parse(file.read_text(encoding="utf-8")).body), set[str]()
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.ImportFrom):
                named |= {f"{node.module}.{each.name}" for each in node.names} | {str(node.module)}
            elif isinstance(node, ast.Import):
                named |= {each.name for each in node.names}
            elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes += [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
        found[name] = named & files.keys()
    return found


def modules() -> list[Path]:
    return [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or through others."""

    def reached(start: str) -> set[str]:
        found, left = set[str](), [start]
        while left:
            new = graph[left.pop()] - found
            found |= new
            left += new
        return found

    below = {name: reached(name) for name in graph}
    found = {frozenset(each for each in below[name] if name in below[each]) for name in graph}
    return [set(each) for each in found if each]


MEASURES = {
    "shipped lines": lambda: lines(PACKAGE),
    "shipped files": lambda: len(sources(PACKAGE)),
    "lines of tests": lambda: lines(ROOT / "tests"),
    "lines of benchmarks": lambda: lines(ROOT / "benchmarks"),
    "constants that are not tuned": lambda: sum(
        file.read_text(encoding="utf-8").count("not tuned") for file in sources(PACKAGE)
    ),
    "import circles": lambda: len(circles(imports())),
}


@pytest.mark.parametrize("name", BUDGET)
def test_a_measure_is_within_its_budget(name):
    required, until_reached = BUDGET[name]
    found = MEASURES[name]() if name in MEASURES else greedy_calls()[name]
    assert found <= (required if until_reached is None else until_reached)


def test_measures_of_code_that_runs_see_something():
    found = greedy_calls()
    assert found["modules of a greedy call"] > 10
    assert found["types of a greedy step"] > 5
    assert found["calls of an undrafted step"] > 40
    assert found["calls of a step of the baseline"] > 40


def test_the_internals_list_the_types_of_a_greedy_step():
    text = (ROOT / "docs/internals/index.md").read_text(encoding="utf-8")
    types = text.partition("steps of one sequence use ")[2].partition("\n\n")[0]
    names = greedy_calls()["their names"]
    found = [name for module, name in names if "._native" not in module]
    assert sorted(found) == sorted(re.findall(r"`(\w+)`", types))


def test_the_row_alone_assigns_drafts_and_verdicts():
    found = set()
    for file in modules():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if stored and node.attr in ("draft", "verdict"):
                found.add((file.relative_to(PACKAGE).as_posix(), node.attr))
    assert found == {("decoding/row.py", "draft"), ("decoding/row.py", "verdict")}


HOLDERS = {"options", "generation_config", "logits_processor", "stopping_criteria"}


def test_a_request_is_held_by_three_classes_at_most():
    """Between generate and the first forward: the Speculator, the request and its target."""
    found = set()
    for file in (PACKAGE / "speculator.py", *(PACKAGE / "decoding").glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for each in ast.walk(tree):
            if isinstance(each, ast.ClassDef):
                nodes = [*ast.walk(each)]
                named = {n.target.id for n in each.body if isinstance(n, ast.AnnAssign)}
                named |= {
                    n.attr.removeprefix("_")
                    for n in nodes
                    if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
                }
                if named & HOLDERS:
                    found.add(each.name)
    assert found == {"Speculator", "Request"}


def test_nothing_passes_on_its_locals():
    for file in modules():
        assert "dict(locals())" not in file.read_text(encoding="utf-8"), file


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"e"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["e"]]
    assert any(imports().values())
