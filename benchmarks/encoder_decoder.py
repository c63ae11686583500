"""Section 4.1 of Leviathan et al. 2023 in small: an encoder-decoder's alpha, and its speed beside.

    python -m benchmarks encoder_decoder --json speller.json

The target is the tiny T5 of the tests, which corrects spelling. Plain and speculative calls take
turns, on the same sentences; a new Speculator for each drafter, kept for all sentences.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.measure.alpha_drafters import CountModel, ModelDrafter
from ngramspec.measure.alpha_run import Plan, measure, train_texts
from ngramspec.measure.machine import machine
from ngramspec.theory.walltime import improvement

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
speller: Any = importlib.import_module("speller")

NEW = 24
DRAFTERS = ("copy(min_match=1)", "trained-bigram", "trained-unigram")
ORDERS = {"trained-bigram": 2, "trained-unigram": 1}


def seconds(model: Any, texts: list[list[int]], temperature: float, speculator: Any) -> float:
    """Wall time of all sentences, one call each; None decodes plainly."""
    began = perf_counter()
    for number, ids in enumerate(texts):
        inputs = torch.tensor([ids])
        arguments: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": bool(temperature)}
        if temperature:
            arguments |= {"temperature": temperature, "top_k": 0}
        torch.manual_seed(number)
        mask = torch.ones_like(inputs)
        if speculator is None:
            model.generate(input_ids=inputs, attention_mask=mask, **arguments)
        else:
            generate(
                model, input_ids=inputs, attention_mask=mask, speculator=speculator, **arguments
            )
    return perf_counter() - began


def timed(model: Any, plan: Plan, temperature: float, gamma: int, repeats: int) -> dict[str, Any]:
    """Seconds of plain and speculative rounds in turn, and the statistics, by drafter."""
    texts = [list(ids) for _, ids in plan.prompts]
    outputs = train_texts(model, plan, temperature)
    speculators = {}
    for name in DRAFTERS:
        drafter: Any = name
        if name in ORDERS:
            drafter = ModelDrafter(CountModel(outputs, ORDERS[name]), name)
        speculators[name] = Speculator(drafter, gamma, tree=None, policy="priority")
    speculators["auto"] = Speculator()
    rounds: dict[str, list[float]] = {name: [] for name in ("plain", *speculators)}
    for turn in range(repeats + 1):
        for name in rounds:
            took = seconds(model, texts, temperature, speculators.get(name))
            if turn:
                rounds[name].append(took)
    return {"rounds": rounds, "stats": {name: each.stats for name, each in speculators.items()}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--count", type=int, default=24, help="sentences")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    model = speller.load()
    texts = [given for given, _ in speller.sentences(7, 2 * arguments.count)]
    prompts = [("sentences", ids) for ids in texts[: arguments.count]]
    plan = Plan(prompts, texts[arguments.count :], new=NEW, gamma=arguments.gamma)
    rows = []
    for temperature in (0.0, 1.0):
        exact = {row.drafter: row for row in measure(model, plan, temperature, list(DRAFTERS))}
        found = timed(model, plan, temperature, arguments.gamma, arguments.repeats)
        plain = found["rounds"]["plain"]
        for name, stats in found["stats"].items():
            mine = found["rounds"][name]
            ratio = median(a / b for a, b in zip(plain, mine, strict=True))
            row: dict[str, Any] = {
                "drafter": name,
                "temperature": temperature,
                "tokens_per_call": stats.tokens_per_call,
                "observed_alpha": stats.alpha,
                "speed_to_plain": ratio,
                "seconds": mine,
                "plain_seconds": plain,
            }
            if name in exact:
                alpha = exact[name].alpha
                c = (stats.draft_seconds / max(stats.drafted, 1)) / (
                    stats.forward_seconds / max(stats.target_calls, 1)
                )
                rate = alpha.alpha[0] * alpha.drafted
                row |= {"alpha": alpha.alpha[0], "error": alpha.error[0], "drafted": alpha.drafted}
                row |= {"c": c, "predicted": float(improvement(rate, arguments.gamma, c))}
            rows.append(row)
            print({key: value for key, value in row.items() if "seconds" not in key}, flush=True)
    if arguments.json:
        given = {name: value for name, value in vars(arguments).items() if name != "json"}
        found = {"settings": given, "where": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0
