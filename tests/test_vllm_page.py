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
TEN = ("vllm_server", "vllm_server_anew")  # five repeats each; both have the usual methods
FORGETFUL = ("vllm_server_anew", "vllm_server_forgetful")
SPEED, PROCESSOR = "tokens_per_second", "cpu_seconds"
USUAL = [  # a column's figure, method, and what it is compared with
    *((SPEED, method, "plain") for method in ("ngram", "suffix", "ngramspec", "shared")),
    (SPEED, "shared", "suffix"),
    *((PROCESSOR, method, "plain") for method in ("suffix", "ngramspec", "shared")),
]
NOTHING_REMEMBERED = [(SPEED, "forgetful", "plain"), (SPEED, "ngramspec", "forgetful")]


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


@pytest.mark.parametrize(
    ("header", "names", "columns"),
    [
        ("| prompts, at once | ngram | suffix |", TEN, USUAL),
        ("| prompts, at once | suffix without memory |", FORGETFUL, NOTHING_REMEMBERED),
    ],
    ids=["usual", "nothing remembered"],
)
def test_tables_are_means_of_ten_repeats(header, names, columns):
    table = rows(header)
    assert len(table) == 8
    for cell, printed in table.items():
        measured = [ratio(names, cell, column) for column in columns]
        assert printed == pytest.approx(measured, abs=0.0051), cell


def test_the_text_sums_the_table_up():
    cells = rows("| prompts, at once | ngram | suffix |")
    few = [cell for cell in cells if cell[1] in (1, 4)]

    def mean(which, *column) -> str:
        return f"{geometric_mean([ratio(TEN, cell, column) for cell in which]):.2f}"

    store, alone = mean(cells, SPEED, "shared", "suffix"), mean(few, SPEED, "shared", "suffix")
    assert f"{store} times in the geometric mean, {alone} times at 1 and 4 at once" in PAGE
    assert f"({mean(cells, SPEED, 'ngramspec', 'suffix')} in the mean" in PAGE
    assert f"({mean(cells, SPEED, 'ngramspec', 'ngram')} in the mean)" in PAGE
