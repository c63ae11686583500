"""Plain generate, transformers' prompt lookup and ngramspec on the demo's texts, side by side.

    python -m benchmarks first_look --dtype bfloat16 --repeats 5 --json first_look.json

Each call of ngramspec has a new Speculator, which knows nothing of earlier repeats. Times are of a
whole call, prefill included. Compare the ratios of their medians.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.harness import add_run, demo_row, show, write
from ngramspec.cli.options import Options
from ngramspec.measure.calls import PLAIN, Caller, Configuration, take_turns
from ngramspec.measure.models import load
from ngramspec.measure.tasks import demo_texts

LOOKUP = Configuration("lookup", {"prompt_lookup_num_tokens": 10})


def add_arguments(options: Options) -> None:
    options.drafter()
    add_run(options, repeats=5, new=128)


def run(arguments: argparse.Namespace) -> int:
    loaded = load(None, arguments.dtype)
    ours = Configuration("ours", speculator={"drafter": arguments.drafter})
    caller, rows = Caller(loaded.model), []
    for text in demo_texts():
        ids = loaded.encode(text.prompt, chat=text.chat)
        configurations = [Configuration(PLAIN), LOOKUP, ours]
        row = measure(caller, configurations, ids, arguments.max_new_tokens, arguments.repeats)
        rows.append({"text": text.title, **row})
        show(text=text.title, **row["tokens_per_second"])
    write(arguments, {"rows": rows})
    return 0


def measure(
    caller: Caller, configurations: list[Configuration], ids: list[int], new: int, repeats: int
) -> dict[str, Any]:
    """All configurations in turn on one prompt, after one round to warm up."""
    calls = {each.name: partial(caller.call, each, ids, new) for each in configurations}
    turns = take_turns(calls, repeats)
    stats = turns.last("ours").stats
    assert stats is not None
    counts = {"tokens_per_call": stats.tokens_per_call, "alpha": stats.alpha}
    return {**demo_row(turns, ids), **counts, "stats": asdict(stats)}
