"""The figures on vLLM's page are those of the raw files that the page names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import geometric_mean

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/engines/vllm.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"
TEN = ("vllm_server", "vllm_server_again")  # five repeats each; both have the usual methods
SPEED = "tokens_per_second"
COLUMNS = [  # a column's figure, method, and what it is compared with
    (SPEED, method, "plain") for method in ("ngram", "suffix", "ngramspec", "shared")
]


def rows(header: str) -> dict[tuple[str, int], list[float]]:
    """The table with this header: the numbers of each row, without errors, by kind and number."""
    body = PAGE.partition(header)[2].partition("\n\n")[0]
    found = {}
    for kind, at_once, cells in re.findall(r"^\| (\w+), (\d+) \| (.*) \|$", body, re.MULTILINE):
        numbers = [float(cell.split()[0]) for cell in cells.split("|")]
        found[kind, int(at_once)] = numbers
    return found


def ratio(names: tuple[str, ...], cell: tuple[str, int], column: tuple[str, str, str]) -> float:
    """The geometric mean over the ten repeats of some raw files."""
    figure, method, other = column
    runs = [
        run for name in names for run in json.loads((RESULTS / f"{name}.json").read_text())["runs"]
    ]
    ratios = [
        run["figures"][method][figure] / run["figures"][other][figure]
        for run in runs
        if (run["kind"], run["concurrency"]) == cell
    ]
    assert len(ratios) == 10
    return geometric_mean(ratios)


def test_the_table_has_the_means_of_ten_repeats():
    table = rows("| prompts, concurrent requests | vLLM ngram |")
    assert len(table) == 6
    for cell, printed in table.items():
        measured = [ratio(TEN, cell, column) for column in COLUMNS]
        assert printed == pytest.approx(measured, abs=0.0051), cell
