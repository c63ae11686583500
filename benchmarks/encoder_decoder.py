"""Section 4.1 of Leviathan et al. 2023 at a small scale: an encoder-decoder's alpha and speed.

    python -m benchmarks encoder_decoder --json speller.json

The target is the tiny T5 of the tests, which corrects spelling. The baseline and all drafters take
turns on the same sentences. Each drafter has one Speculator for all sentences.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.harness import add_json, from_tests, padded, write
from ngramspec import Speculator, generate
from ngramspec.cli.options import add_count
from ngramspec.measure.alpha_drafters import CountModel, ModelDrafter
from ngramspec.measure.alpha_run import Plan, measure, train_texts
from ngramspec.measure.turns import PLAIN, Turns, take_turns
from ngramspec.theory.walltime import improvement

NEW = 24
DRAFTERS = ("copy(min_match=1)", "trained-bigram", "trained-unigram")
ORDERS = {"trained-bigram": 2, "trained-unigram": 1}


def say_all(
    model: Any, texts: list[list[int]], temperature: float, speculator: Speculator | None = None
) -> None:
    """Generate from all sentences, one call each; speculator None: plain ``generate``."""
    arguments: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": bool(temperature)}
    if temperature:
        arguments |= {"temperature": temperature, "top_k": 0}
    for number, ids in enumerate(texts):
        torch.manual_seed(number)
        if speculator is None:
            model.generate(**padded([ids]), **arguments)
        else:
            generate(model, speculator=speculator, **padded([ids]), **arguments)


def speculators(model: Any, plan: Plan, temperature: float, gamma: int) -> dict[str, Speculator]:
    """A Speculator for each drafter, kept for all sentences."""
    outputs = train_texts(model, plan, temperature)
    found = {}
    for name in DRAFTERS:
        drafter: Any = name
        if name in ORDERS:
            drafter = ModelDrafter(CountModel(outputs, ORDERS[name]), name)
        found[name] = Speculator(drafter, gamma, tree=None, policy="priority")
    return found | {"auto": Speculator()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_count(parser, "--count", 24, "sentences")
    add_count(parser, "--gamma", 4, "tokens of a draft")
    add_count(parser, "--repeats", 5, "timed rounds over all sentences")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    speller = from_tests("speller")
    model, count, gamma = speller.load(), arguments.count, arguments.gamma
    texts = [list(given) for given, _ in speller.sentences(7, 2 * count)]
    prompts = [("sentences", ids) for ids in texts[:count]]
    plan = Plan(prompts, texts[count:], new=NEW, gamma=gamma)
    rows = []
    for temperature in (0.0, 1.0):
        exact = {row.drafter: row for row in measure(model, plan, temperature, list(DRAFTERS))}
        compared = speculators(model, plan, temperature, gamma)
        baseline = partial(say_all, model, texts[:count], temperature)
        calls = {PLAIN: baseline} | {
            name: partial(baseline, each) for name, each in compared.items()
        }
        turns = take_turns(calls, arguments.repeats)
        for name, speculator in compared.items():
            row = row_of(name, temperature, speculator, turns)
            if name in exact:
                row |= predicted(exact[name].alpha, speculator, gamma)
            rows.append(row)
            print({key: value for key, value in row.items() if "seconds" not in key}, flush=True)
    write(arguments, {"rows": rows})
    return 0


def row_of(
    name: str, temperature: float, speculator: Speculator, turns: Turns[None]
) -> dict[str, Any]:
    """What was measured of one drafter."""
    return {
        "drafter": name,
        "temperature": temperature,
        "tokens_per_call": speculator.stats.tokens_per_call,
        "observed_alpha": speculator.stats.alpha,
        "speed_to_plain": turns.speedup(name),
        "seconds": turns.seconds[name],
        "plain_seconds": turns.seconds[PLAIN],
    }


def predicted(alpha: Any, speculator: Speculator, gamma: int) -> dict[str, Any]:
    """A drafter's exact alpha, its cost c, and the speedup that Theorem 3.8 predicts of them."""
    stats = speculator.stats
    c = (stats.draft_seconds / max(stats.drafted, 1)) / (
        stats.forward_seconds / max(stats.target_calls, 1)
    )
    rate = alpha.alpha[0] * alpha.drafted
    row = {"alpha": alpha.alpha[0], "error": alpha.error[0], "drafted": alpha.drafted}
    return row | {"c": c, "predicted": float(improvement(rate, gamma, c))}
