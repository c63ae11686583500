"""The picture of README's chart; ``test_figures`` compares the tables with their raw files."""

from __future__ import annotations

from xml.etree import ElementTree

from benchmarks.chart import draw


def test_the_chart_shows_models_tasks_means_and_a_dot_for_each_prompt(tmp_path):
    """Two prompts, one of them in two ways more, and a model that is not shown."""
    known = {"model": "SmolLM2-135M-Instruct", "dtype": "float32", "mode": "greedy", "task": "edit"}
    known |= {"tokens_per_call": 2.0, "same_as_plain": {"ours": True}}
    first = {**known, "tokens_per_second": {"plain": 10, "lookup 3": 10, "lookup": 20, "ours": 40}}
    last = {**known, "tokens_per_second": {"plain": 10, "lookup 3": 20, "lookup": 5, "ours": 10}}
    rows = [first, last, {**first, "mode": "sampled"}, {**first, "dtype": "bfloat16"}]
    raw = {"rows": [*rows, {**first, "model": "another"}], "settings": {"repeats": 1}}
    path = tmp_path / "chart.svg"
    draw(path, "the version", raw)
    root = ElementTree.parse(path).getroot()
    said = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    for word in ("SmolLM2-135M", "edit code", "greedy", "2.00", "4.00", "1x"):
        assert said.count(word) == 1 + (word == "1x"), word
    assert "tool calls" not in said
    assert "the version" in path.read_text()
    assert path.read_text().count("#ffffff; stroke: #24292f") == 7  # and one in the legend
