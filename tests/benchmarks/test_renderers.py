"""The renderers of tables, on small raw files in the form that the benchmarks write."""

from __future__ import annotations

import argparse
import json

from benchmarks.editor import Answer, report
from benchmarks.renderers import (
    beams,
    demo,
    divergence,
    editor,
    heads,
    host_time,
    llama,
    models,
    parity,
    samples,
    stores,
    summaries,
    vllm,
)


def cells(table: str) -> list[list[str]]:
    """The cells of a table's rows, without its header."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_the_demo_is_of_whole_calls_or_of_earlier_raw_files():
    rates = {"plain": 10.0, "prompt lookup 10": 15.0, "ngramspec": 30.0}
    rows = [{"task": "edit", "way": way, "tokens_per_second": rate} for way, rate in rates.items()]
    earlier = {"plain": 10.0, "lookup": 15.0, "ours": 30.0}
    expected = [["edit", "10.0", "15.0", "30.0", "3.00", "2.00"]]
    assert cells(demo({"summary": rows})) == expected
    assert cells(demo({"rows": [{"text": "edit", "tokens_per_second": earlier}]})) == expected


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


def test_models_have_the_mean_the_worst_prompt_and_the_better_lookup():
    known = {"model": "m", "dtype": "float32", "mode": "greedy", "task": "edit", "batch": 1}
    speeds = [
        {"plain": 10, "lookup 3": 10, "lookup": 20, "ours": 40},
        {"plain": 10, "lookup 3": 20, "lookup": 5, "ours": 10},
    ]
    rows = [
        {**known, "tokens_per_second": each, "same_as_plain": {"ours": each is speeds[0]}}
        for each in speeds
    ]
    half = {**rows[0], "dtype": "bfloat16"}
    four = {**half, "batch": 4, "tokens_per_second": {"plain": 10, "ours": 30}}
    table = models({"rows": [*rows, half, four]})
    assert "| model | task | float32, greedy | bfloat16, greedy | same text, float32 |" in table
    assert cells(table) == [
        ["m", "edit", "2.00 (1.00; 1.41)", "4.00 (4.00; 2.00)", "1 of 2"],
        ["m", "edit, 4 rows", "", "3.00 (3.00)", ""],
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
    assert cells(divergence(raw)) == [["bfloat16", "1", "9", "8", "4", "1", ">8"]]
    raw = {"settings": settings, "ties": 0, "wrong": 0, "histogram_ulps": {"0": 0, "1": 0}}
    assert cells(divergence(raw))[0][-3:] == ["0", "0", ""]


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


def test_the_server_is_compared_by_medians(tmp_path):
    path = tmp_path / "raw.json"
    arguments = argparse.Namespace(command_line="", json=path)
    answers = [
        Answer(server, "area", cursor, "", first=at * cursor, line=4 * at * cursor)
        for at, server in enumerate(("ngramspec", "transformers"), 1)
        for cursor in (1, 2, 5)
    ]
    report(arguments, answers)
    assert cells(editor(json.loads(path.read_text()), names=["typing"])) == [
        ["typing", "first token", "2.00 (5.00)", "4.00 (10.00)", "2.0"],
        ["typing", "whole line", "8.00 (20.00)", "16.00 (40.00)", "2.0"],
    ]


def test_stores_have_their_bytes_per_token():
    look_up = {"us_median": 1.65, "us_p99": 4.75}
    corpus = {"tokens": 5000, "build_us_a_token": 0.44, "bytes_a_token": 9.29, "look_up": look_up}
    shared = {"add": {"held": 1000, "us_a_token": 0.26}, "bytes": 16000, "look_up": look_up}
    assert [row[1:4] for row in cells(stores(corpus, shared))] == [
        ["5,000", "0.44", "9.3"],
        ["1,000", "0.26", "16.0"],
    ]
