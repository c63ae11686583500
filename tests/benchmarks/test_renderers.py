"""The renderers of tables, on small raw files in the form that the benchmarks write."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.chart import draw
from benchmarks.editor import Answer, report
from benchmarks.renderers import (
    beams,
    chart,
    demo,
    divergence,
    editor,
    heads,
    host_time,
    llama,
    models,
    near_ties,
    nothing,
    parity,
    samples,
    stores,
    summaries,
    vllm,
    whole_calls,
)


def cells(table: str) -> list[list[str]]:
    """The cells of a table's rows, without its header."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_the_demo_is_compared_with_both():
    rates = {"plain": 10.0, "prompt lookup 10": 15.0, "ngramspec": 30.0}
    rows = [{"task": "edit", "way": way, "tokens_per_second": rate} for way, rate in rates.items()]
    assert cells(demo({"summary": rows})) == [["edit", "10.0", "15.0", "30.0", "3.00", "2.00"]]


def test_host_time_has_the_assumed_speeds_of_undrafted_steps():
    known = {"per_forward": 240.4, "spread": 9.0, "per_token": 60.0, "drafted": 0.5}
    rows = [
        {"name": "chain, copy", **known, "undrafted": None, "assumed": []},
        {"name": "ngramspec none, own", **known, "undrafted": 95.0, "assumed": [0.98765, 0.99]},
    ]
    table = host_time({"rows": rows, "assumed_forwards_ms": [3, 6]})
    assert "speed at 3 ms | speed at 6 ms" in table
    assert cells(table) == [
        ["chain, copy", "", "240", "9", "60", "50%", "", ""],
        ["ngramspec none, own", "95", "240", "9", "60", "50%", "0.988", "0.990"],
    ]


def test_summaries_are_means_over_batches():
    known = {"beams": 4, "batch": 8, "worst": 1.0, "lookup": None, "tokens_per_call": 3.0}
    known["encoder_share"] = 0.2
    rows = [{**known, "speedup": 2.0, "same": True}, {**known, "speedup": 8.0, "same": False}]
    files = [{"settings": {"dtype": "float32"}, "rows": [row]} for row in rows]
    mean = ["float32", "4", "8", "4.00", "1.00", "", "3.00", "0.20", "1 of 2"]
    assert cells(summaries(*files)) == [["recorded", *mean]]
    for file in files:
        file["settings"] |= {"extract": True}
    assert cells(summaries(*files)) == [["sentences of the article", *mean]]


def results() -> dict:
    """Two prompts in float32, one in bfloat16, a batch, and a model that is not shown."""
    known = {"model": "smollm2", "dtype": "float32", "mode": "greedy", "task": "edit"}
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


def test_samples_are_means_over_prompts():
    slow, fast = ({"speedup": speed, "tokens_per_call": speed} for speed in (0.5, 2.0))
    rows = [{"ours": slow, "separate": slow}, {"ours": fast, "separate": slow}]
    assert cells(samples({"rows": rows})) == [
        ["from each other", "2", "1.00", "0.50", "1.00"],
        ["separately", "2", "0.50", "0.50", "0.50"],
    ]


def test_heads_are_means_over_groups():
    figures = {"tables": {"a": 2.0, "b": 8.0}, "both": {"a": 4.0, "b": 9.0}}
    result = {"cost": 0.02, "tokens_per_cost": figures}
    result["ratios"] = {"/ better alone": {"a": 2.0, "b": 1.125}}
    table = heads({"results": [result]})
    assert table.startswith("| cost of the head | tables | both | both / better alone |")
    assert cells(table) == [["0.02", "4.000", "6.000", "1.500"]]


def test_divergences_are_counted_with_their_largest_gap():
    settings = {"dtype": "bfloat16", "batch": 1, "prompts": 9, "tokens": 8}
    raw = {"settings": settings, "ties": 3, "wrong": 1, "histogram_ulps": {"0": 2, "1": 1, ">8": 1}}
    assert cells(divergence(raw)) == [["bfloat16", "ngramspec", "1", "9", "8", "4", "1", ">8"]]
    settings["plain"] = True
    raw = {"settings": settings, "ties": 0, "wrong": 0, "histogram_ulps": {"0": 0, "1": 0}}
    assert cells(divergence(raw))[0][1:] == ["plain `generate`", "1", "9", "8", "0", "0", ""]


def test_a_class_counts_once_by_its_worst_outcome():
    def cell(model: str, what: str, outcome: str, detail: str = "") -> dict[str, str]:
        return {"model": model, "what": what, "outcome": outcome, "detail": detail}

    table = parity(
        {
            "cells": [
                *(cell("A", what, "identical") for what in ("batch 1", "batch 2")),
                cell("B", "batch 1", "identical"),
                cell("B", "batch 2", "identical", "as chains: a reason"),
                cell("C", "batch 1", "identical"),
                cell("C", "batch 2", "wrong", "token 3"),
                cell("D", "any", "refused", "a reason"),
                cell("E", "any", "not run", "a reason"),
                cell("F", "static cache, none, batch 8", "wrong"),
            ]
        }
    )
    assert [int(row[1]) for row in cells(table)] == [2, 1, 1, 1, 1]


def test_beams_are_means_over_prompts():
    known = {"beams": 2, "undrafted": 1.0, "tokens_per_call": 2.0, "same": True}
    raw = {"rows": [{**known, "ours": 1.0}, {**known, "ours": 4.0}]}
    table = beams(raw, names=["edit"])
    assert cells(table) == [["edit", "2", "1.00", "2.00", "2.00", "2 of 2"]]


def test_engines_are_compared_with_no_drafts():
    ways = ("nothing", "ngram", "suffix", "ngramspec", "shared")
    figures = {way: {"tokens_per_second": 10.0 * at} for at, way in enumerate(ways, 1)}
    run = {"kind": "mixed", "concurrency": 4, "figures": figures}
    assert cells(vllm({"runs": [run, run]})) == [["mixed", "4", "2.00", "3.00", "4.00", "5.00"]]
    speeds = {"ngramspec": {"chat": {"speed": 1.5}}, "lookup": {"chat": {"speed": 0.5}}}
    raw = {"decode_to_plain": speeds, "prefill_to_plain": {"ngramspec": 1.25}}
    assert cells(llama(raw, names=["F32"])) == [["F32", "chat", "1.50", "0.50", "1.25"]]


def test_the_servers_are_compared_by_medians(tmp_path):
    path = tmp_path / "raw.json"
    settings = {"mode": "typing", "model": Path("folder/m"), "infill": True, "until": "block"}
    arguments = argparse.Namespace(command_line="", json=path, dtype="float32", **settings)
    answers = [
        Answer(server, "area", cursor, "", first=at * cursor, line=4 * at * cursor, right=at == 2)
        for at, server in enumerate(("ngramspec", "llama_cpp"), 1)
        for cursor in (1, 2, 5)
    ]
    report(arguments, answers)
    table = editor(json.loads(path.read_text()))
    assert table.startswith("| model | dtype | requests |  | ngramspec serve | llama_cpp.server |")
    typing = "every 0.3 s, 3 of 4 cancelled, fill in the middle"
    assert cells(table) == [
        ["m", "float32", typing, "seconds to the first token", "2.00 (5.00)", "4.00 (10.00)"],
        ["m", "float32", typing, "seconds to the block", "8.00 (20.00)", "16.00 (40.00)"],
        ["m", "float32", typing, "right lines", "", "3"],
    ]


def test_stores_have_their_bytes_per_token():
    look_up = {"us_median": 1.65, "us_p99": 4.75}
    corpus = {"tokens": 5000, "build_us_a_token": 0.44, "bytes_a_token": 9.29, "look_up": look_up}
    shared = {"add": {"held": 1000, "us_a_token": 0.26}, "bytes": 16000, "look_up": look_up}
    assert [row[1:4] for row in cells(stores(corpus, shared))] == [
        ["5,000", "0.44", "9.3"],
        ["1,000", "0.26", "16.0"],
    ]
