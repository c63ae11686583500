"""Several sampled answers to each prompt, which are drafted from each other while they run.

    python -m benchmarks samples --traces traces.jsonl --json samples.json

The embedded model answers prompts of the groups in batches of ``--samples`` equal prompts, without
an end of sequence. The baseline, ngramspec, and ngramspec whose rows do not know each other take
turns. Rows that advance separately use their own random numbers, so texts differ. Times are of a
whole call, prefill included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.harness import add_run, padded, prepared_call, recorded_prompts, write
from ngramspec import DecodeStats, Speculator
from ngramspec.cli.options import add_count
from ngramspec.drafters.call import CallStores
from ngramspec.measure.models import load
from ngramspec.measure.turns import PLAIN, take_turns

OURS, SEPARATE = "ours", "separate"
SEED = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--groups", nargs="+", default=["summary", "answer", "chat", "code"])
    parser.add_argument("--longest", type=int, default=400, help="leave longer prompts out")
    parser.add_argument("--temperature", type=float, default=0.8)
    add_count(parser, "--prompts", 20, "prompts, of all groups in turn")
    add_count(parser, "--samples", 8, "answers to a prompt")
    add_run(parser, repeats=1, new=64)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    model = load(None, arguments.dtype).model
    path, longest = arguments.traces, arguments.longest
    groups = [recorded_prompts(path, group, longest) for group in arguments.groups]
    prompts = [prompt for several in zip_longest(*groups) for prompt in several if prompt]
    print(f"{'prompt':>7}{'ours':>8}{'separate':>10}{'tok/call':>10}{'separate':>10}")
    rows = []
    for prompt in islice(prompts, arguments.prompts):
        row = measure(model, prompt, arguments)
        rows.append(row)
        speeds = f"{row[OURS]['speedup']:>7.2f}x{row[SEPARATE]['speedup']:>9.2f}x"
        counts = f"{row[OURS]['tokens_per_call']:>10.2f}{row[SEPARATE]['tokens_per_call']:>10.2f}"
        print(f"{len(prompt):>7}{speeds}{counts}", flush=True)
    means = {
        way: {key: geometric_mean(row[way][key] for row in rows) for key in rows[0][way]}
        for way in (OURS, SEPARATE)
    }
    print(means)
    write(arguments, {"rows": rows, "means": means})
    return 0


def measure(model: Any, prompt: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """The speedups over the baseline, and the tokens per call."""
    inputs = padded([prompt] * arguments.samples)
    sampling = {"do_sample": True, "temperature": arguments.temperature}
    call = prepared_call(model, inputs, arguments.max_new_tokens, **sampling)

    def plain() -> DecodeStats:
        torch.manual_seed(SEED)
        call()
        return DecodeStats()

    def speculate(*, together: bool) -> DecodeStats:
        torch.manual_seed(SEED)
        speculator = Speculator()
        with rows_joined(together):
            call(speculator)
        return speculator.stats

    calls: dict[str, Callable[[], DecodeStats]] = {
        PLAIN: plain,
        OURS: partial(speculate, together=True),
        SEPARATE: partial(speculate, together=False),
    }
    turns = take_turns(calls, arguments.repeats, warm_up=0, first=0)
    return {
        name: {
            "speedup": turns.speedup(name),
            "tokens_per_call": turns.last(name).tokens_per_call,
        }
        for name in (OURS, SEPARATE)
    } | {"seconds": turns.seconds}


@contextmanager
def rows_joined(joined: bool) -> Iterator[None]:
    """Whether rows with equal prompts are drafted from each other."""
    if joined:
        yield
        return
    with patch.object(CallStores, "join_equal", lambda self, prompts, tokens: None):
        yield
