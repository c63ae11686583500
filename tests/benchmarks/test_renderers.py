"""The renderers of tables, on small raw files in the form that the benchmarks write."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.chart import draw
from benchmarks.renderers import (
    chart,
    models,
    near_ties,
    nothing,
    whole_calls,
)


def cells(table: str) -> list[list[str]]:
    """The cells of a table's rows, without its header."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def results() -> dict:
    """Two prompts in float32, one in bfloat16, a batch, and a model that is not shown."""
    known = {"model": "SmolLM2-135M-Instruct", "dtype": "float32", "mode": "greedy", "task": "edit"}
    speeds = [
        {"plain": 10, "lookup 3": 10, "lookup": 20, "ours": 40},
        {"plain": 10, "lookup 3": 20, "lookup": 5, "ours": 10},
    ]
    rows = [
        {**known, "tokens_per_second": each, "same_as_plain": {"ours": at == 0}}
        for at, each in enumerate(speeds)
    ]
    rows.append({**rows[0], "mode": "sampled"})
    rows.append({**rows[0], "dtype": "bfloat16"})
    rows.append({**rows[0], "task": "summary 8000", "tokens_per_second": {"plain": 1, "ours": 3}})
    rows.append({**rows[0], "model": "another"})
    rows = [{**row, "tokens_per_call": 2.0} for row in rows]
    return {"rows": rows, "settings": {"repeats": 1, "max_new_tokens": 96}}


def test_models_have_the_mean_the_worst_prompt_and_the_better_lookup():
    assert cells(models(results())) == [
        [*plan.split(", "), *figures]
        for plan, figures in {
            "SmolLM2-135M, float32, greedy, edit": ["1.41 (1.00)", "2.00 (1.00)", "1 of 2", "2.00"],
            "SmolLM2-135M, float32, greedy, summary 8000": ["", "3.00 (3.00)", "1 of 1", "2.00"],
            "SmolLM2-135M, float32, sampled, edit": [
                "2.00 (2.00)",
                "4.00 (4.00)",
                "1 of 1",
                "2.00",
            ],
            "SmolLM2-135M, bfloat16, greedy, edit": [
                "2.00 (2.00)",
                "4.00 (4.00)",
                "1 of 1",
                "2.00",
            ],
        }.items()
    ]


def short() -> dict:
    """The results of the public texts, without long ones."""
    raw = results()
    return {**raw, "rows": [row for row in raw["rows"] if row["task"] == "edit"]}


def test_the_sentence_of_the_chart_has_its_means_and_the_worst_prompt():
    random = {"summary": [{"way": "ngramspec", "ratio": 1.02, "ratio_worst": 0.97}]}
    text = chart(short(), random)
    assert text.startswith("![")
    assert "**2.00** times as fast as with plain `generate` and **1.41** times as fast" in text
    assert "(geometric means over 2 prompts)" in text
    assert "it is 4.00 and 2.00 times as fast. The worst prompt runs at **1.00** times" in text
    assert "at 1.02 times (worst prompt: 0.97). Each prompt ran once in each way" in text


def test_the_chart_shows_models_tasks_means_and_a_dot_for_each_prompt(tmp_path):
    path = tmp_path / "chart.svg"
    draw(path, "the version", short())
    root = ElementTree.parse(path).getroot()
    said = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("SmolLM2-135M", "edit code", "greedy", "2.00", "4.00", "1x"):
        assert said.count(word) == 1 + (word == "1x"), word
    assert "tool calls" not in said
    assert "the version" in path.read_text()
    assert path.read_text().count("#ffffff; stroke: #24292f") == 7  # and one in the legend


def test_texts_that_differ_are_counted_next_to_those_of_other_batches():
    settings = {"dtype": "bfloat16", "prompts": 9, "tokens": 8}
    ours = {"settings": settings, "ties": 3, "wrong": 1}
    control = {"settings": {"batch": 8}, "ties": 5, "wrong": 1}
    text = near_ties(ours, control)
    assert "4 of 9 texts of 8 tokens differed" in text
    assert "6 of the same texts" in text
    assert "batches of 8" in text


def test_whole_calls_have_their_worst_prompt_and_instructions():
    def row(way: str, ratio: float) -> dict:
        known = {"task": "edit", "way": way, "prompts": 4, "same": 3, "tokens_per_call": 5.0}
        known |= {"limit_share": 0.9, "ratio": ratio, "ratio_worst": ratio / 2}
        return {**known, "ratio_median": ratio}

    summary = [row("prompt lookup 10", 1.5), row("ngramspec", 3.0)]
    settings = {"dtype": "bfloat16", "same_text": False, "repeats": 2}
    raw = {"settings": settings, "where": {"instructions": "amx"}, "summary": summary}
    speeds = ["1.50 (0.75)", "3.00 (1.50)", "2.00", "5.00", "0.90"]
    assert cells(whole_calls(raw)) == [["bfloat16", "amx", "edit", "4", *speeds, "3 of 4"]]
    assert cells(nothing(raw, raw)) == [
        ["bfloat16", "amx", "4", "2", "3.000", "3.000", "1.500"] for _ in range(2)
    ]
