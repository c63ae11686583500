"""Compiled verification against plain compiled ``generate`` and prompt lookup on a dynamic cache.

    python -m benchmarks compiled --dtype bfloat16 --repeats 3 --json compiled.json

All configurations take turns on the demo's texts, each call of ngramspec with a new Speculator. The
static caches of all of them have one size. What is compiled is compiled before anything is timed:
one graph of plain ``generate``, and of ngramspec one for each width. Times are of a whole call,
prefill included. Compare the ratios of their medians.
"""

from __future__ import annotations

import argparse
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness import add_run, demo_row, show, write
from ngramspec import Draft, Drafter, DraftSession
from ngramspec.cli.options import Options, load_model
from ngramspec.draft import Int32
from ngramspec.hf_model.compiled import bucket_sizes, compilations
from ngramspec.measure.calls import PLAIN, Caller, Configuration, take_turns
from ngramspec.measure.tasks import demo_texts

PROBE_TOKENS = 8


class AllWidths(Drafter):
    """Drafts of every width in turn, twice each, so that all graphs are compiled."""

    source_names = ("widths",)

    def __init__(self, widths: tuple[int, ...]) -> None:
        self.lengths = [width - 1 for width in widths for _ in range(2)]

    def start(self, tokens: Int32) -> DraftSession:
        lengths = iter(self.lengths)

        class Session(DraftSession):
            def propose(self, gamma: int, cost: Any = None, *, tree: bool = False) -> Draft:
                return Draft(np.zeros(min(next(lengths, 0), gamma), np.int32))

            def extend(self, tokens: Int32) -> None:
                return None

        return Session()


def add_arguments(options: Options) -> None:
    options.add("--model", help="a folder or a hub id; default: the embedded one")
    options.device()
    add_run(options, repeats=3, new=128)
    options.count("--gamma-max", 31, "most tokens of a draft")
    options.count("--width", 16, "of the configuration with a fixed width")
    options.count("--texts", 4, "texts of the demo")


def run(arguments: argparse.Namespace) -> int:
    loaded = load_model(arguments)
    texts = list(demo_texts())[: arguments.texts]
    prompts = [loaded.encode(each.prompt, chat=each.chat) for each in texts]
    size = max(map(len, prompts)) + arguments.max_new_tokens
    caller = Caller(loaded.model)
    compared = configurations(size, arguments.gamma_max, arguments.width)
    warmed = warm_up(caller, compared, size, arguments.gamma_max, min(prompts, key=len))
    known = compilations()
    rows = []
    for text, prompt in zip(texts, prompts, strict=True):
        row = measure(caller, compared, prompt, arguments.max_new_tokens, arguments.repeats)
        rows.append({"text": text.title, **row})
        show(text=text.title, **row["tokens_per_second"])
    graphs = {"warm_up": known, "timed": compilations() - known}
    found = {"cache_positions": size, "warm_up_seconds": warmed, "compilations": graphs}
    write(arguments, {**found, "rows": rows})
    return 0


def configurations(size: int, gamma_max: int, width: int) -> list[Configuration]:
    """What is compared; static caches have ``size`` positions."""
    static = {"cache_implementation": "static", "max_cache_len": size}
    given: dict[str, Any] = {"gamma_max": gamma_max}
    graphs = given | {"compiled": True}
    fixed = graphs | {"width": width}
    return [
        Configuration(PLAIN),
        Configuration("plain static", static),
        Configuration("plain compiled", static, compiled=True),
        Configuration("lookup", {"prompt_lookup_num_tokens": 10}),
        Configuration("ours", speculator=given),
        Configuration("ours compiled", static, graphs, compiled=True),
        Configuration(f"ours width {width}", static, fixed, compiled=True),
    ]


def warm_up(
    caller: Caller, compared: list[Configuration], size: int, gamma_max: int, prompt: list[int]
) -> dict[str, float]:
    """Compile all graphs; the seconds of each configuration's first call."""
    widths = bucket_sizes(gamma_max + 1)
    drafter = AllWidths(widths)
    every = Configuration(
        f"widths {widths}",
        {"cache_implementation": "static", "max_cache_len": size},
        {"drafter": drafter, "gamma_max": gamma_max, "compiled": True},
        compiled=True,
    )
    seconds = {}
    for each in (*compared, every):
        new = 2 * len(widths) + gamma_max + 1 if each is every else PROBE_TOKENS
        begin = perf_counter()
        caller.call(each, prompt, new)
        seconds[each.name] = perf_counter() - begin
    return seconds


def measure(
    caller: Caller, compared: list[Configuration], prompt: list[int], new: int, repeats: int
) -> dict[str, Any]:
    """All configurations in turn on one prompt, after one round that is not counted."""
    calls = {each.name: partial(caller.call, each, prompt, new) for each in compared}
    turns = take_turns(calls, repeats)
    stats = {name: turns.last(name).stats for name in calls}
    per_call = {name: each.tokens_per_call for name, each in stats.items() if each is not None}
    return {**demo_row(turns, prompt), "tokens_per_call": per_call}
