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
from itertools import islice, zip_longest
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.harness import (
    add_run,
    add_traces,
    counted,
    padded,
    prepared_call,
    recorded_prompts,
    show_and_write,
)
from ngramspec import DecodeStats, Speculator
from ngramspec.cli.options import CommandOptions
from ngramspec.decoding.stores import CallStores
from ngramspec.measure.calls import PLAIN, take_turns
from ngramspec.measure.models import load

OURS, SEPARATE = "ours", "separate"
SEED = 0


def add_arguments(options: CommandOptions) -> None:
    add_traces(options)
    options.add("--groups", nargs="+", default=["summary", "answer", "chat", "code"])
    options.add("--longest", type=int, default=400, help="leave longer prompts out")
    options.add("--temperature", type=float, default=0.8)
    options.count("--prompts", 20, "prompts, of all groups in turn")
    options.count("--samples", 8, "answers to a prompt")
    add_run(options, repeats=1, new=64)


def run(arguments: argparse.Namespace) -> int:
    model = load(None, arguments.dtype).model
    path, longest = arguments.traces, arguments.longest
    groups = [recorded_prompts(path, group, longest) for group in arguments.groups]
    prompts = [prompt for several in zip_longest(*groups) for prompt in several if prompt]
    chosen = islice(prompts, arguments.prompts)
    return show_and_write(arguments, (measure(model, prompt, arguments) for prompt in chosen))


def measure(model: Any, prompt: list[int], arguments: argparse.Namespace) -> dict[str, Any]:
    """The speedups over the baseline, and the tokens per call."""
    inputs = padded([prompt] * arguments.samples)
    sampling = {"do_sample": True, "temperature": arguments.temperature}
    call = prepared_call(model, inputs, arguments.max_new_tokens, **sampling)

    def ran(speculator: Speculator | None = None, *, together: bool = True) -> DecodeStats:
        torch.manual_seed(SEED)
        with rows_joined(together):
            return counted(call, speculator)[1]

    calls: dict[str, Callable[[], DecodeStats]] = {
        PLAIN: ran,
        OURS: lambda: ran(Speculator()),
        SEPARATE: lambda: ran(Speculator(), together=False),
    }
    turns = take_turns(calls, arguments.repeats, warm_up=0, first=0)
    return {
        name: {"speedup": turns.speedup(name), "tokens_per_call": turns.last(name).tokens_per_call}
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
