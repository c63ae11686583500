"""Plain generate, transformers' prompt lookup and ngramspec on the demo's texts, side by side.

The three take turns in one process, ngramspec with a new Speculator each time, so that it knows
nothing of the text from the turn before. Times are of a whole call, prefill included; what counts
are the ratios of their medians. The raw times go to a JSON file.

    python -m benchmarks first_look --dtype bfloat16 --repeats 5 --json first_look.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ngramspec import Speculator
from ngramspec.measure.machine import machine
from ngramspec.measure.measurement import Measurement, timed
from ngramspec.measure.models import load
from ngramspec.measure.sample_texts import demo_texts

LOOKUP_TOKENS = 10  # prompt_lookup_num_tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--json", type=Path, help="where to write the raw times")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    loaded = load(None, arguments.dtype)
    speculator = Speculator(arguments.drafter)
    measurement = Measurement(loaded, speculator, arguments.max_new_tokens)
    rows = []
    print(f"{arguments.dtype:<22}   tokens/s (median of {arguments.repeats})        ratios")
    print(f"{'':<22}{'plain':>9}{'lookup':>9}{'ours':>9}{'ours/plain':>13}{'ours/lookup':>13}")
    for text in demo_texts():
        row = measure(
            measurement,
            text.title,
            loaded.encode(text.prompt, chat=text.chat),
            arguments.repeats,
        )
        rows.append(row)
        speed = row["tokens_per_second"]
        print(
            f"{text.title:<22}{speed['plain']:>9.1f}{speed['lookup']:>9.1f}{speed['ours']:>9.1f}"
            f"{speed['ours'] / speed['plain']:>12.2f}x{speed['ours'] / speed['lookup']:>12.2f}x"
        )
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"settings": settings, "machine": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(measurement: Measurement, title: str, ids: list[int], repeats: int) -> dict[str, Any]:
    """Run the three ways in turn, after one turn that is not counted."""
    lookup = partial(measurement.model.generate, prompt_lookup_num_tokens=LOOKUP_TOKENS)
    ways: dict[str, Callable[[list[int]], list[int]]] = {
        "plain": measurement.plain,
        "lookup": lambda prompt: measurement.new_tokens(lookup, prompt, None),
        "ours": measurement.speculate,
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    tokens: dict[str, list[int]] = {}
    drafter = measurement.speculator.drafter.spec
    for turn in range(repeats + 1):
        for way, call in ways.items():
            measurement.speculator = Speculator(str(drafter))
            tokens[way], taken = timed(call, ids)
            if turn:
                seconds[way].append(taken)
    stats = measurement.speculator.stats
    return {
        "text": title,
        "prompt_tokens": len(ids),
        "new_tokens": {way: len(new) for way, new in tokens.items()},
        "same_as_plain": {way: new == tokens["plain"] for way, new in tokens.items()},
        "tokens_per_second": {way: len(tokens[way]) / median(seconds[way]) for way in ways},
        "tokens_per_call": stats.tokens_per_call,
        "alpha": stats.alpha,
        "stats": asdict(stats),
        "seconds": seconds,
    }
