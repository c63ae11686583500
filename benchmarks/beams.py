"""Beam search of recorded prompts: plain generate and ngramspec in turn, in one process.

    python -m benchmarks beams --traces traces.jsonl --group context_qa --json beams.json

The embedded model continues the prompts of one group by beam search. "undrafted" is ngramspec
without drafts. It shows what two other savings are worth: the prefill of one row for each prompt,
and copies of changed rows alone. Times are of a whole call, prefill included. Compare the ratios of
one turn's times.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks.harness import (
    add_run,
    add_traces,
    padded,
    prepared_call,
    recorded_prompts,
    show_and_write,
)
from ngramspec import Speculator
from ngramspec.cli.options import CommandOptions
from ngramspec.measure.calls import PLAIN, take_turns
from ngramspec.measure.models import load

UNDRAFTED, OURS = "undrafted", "ours"


def add_arguments(options: CommandOptions) -> None:
    add_traces(options)
    options.add("--group", default="context_qa")
    options.add("--longest", type=int, default=400, help="leave longer prompts out")
    options.add("--count", type=int, default=3, help="prompts")
    options.add("--beams", type=int, nargs="+", default=[2, 4, 8])
    add_run(options, repeats=1, new=48)


def run(arguments: argparse.Namespace) -> int:
    model = load(None, arguments.dtype).model
    prompts = recorded_prompts(arguments.traces, arguments.group, arguments.longest)
    speculators = {UNDRAFTED: Speculator("none"), OURS: Speculator()}
    rows = (
        measure(model, prompt, beams, speculators, arguments)
        for beams in arguments.beams
        for prompt in prompts[: arguments.count]
    )
    return show_and_write(arguments, rows)


def measure(
    model: Any, prompt: list[int], beams: int, speculators: dict[str, Speculator], arguments: Any
) -> dict[str, Any]:
    """The median speedups over the baseline on one prompt, and ngramspec's counts."""
    call = prepared_call(model, padded([prompt]), arguments.max_new_tokens, num_beams=beams)
    speculators[OURS].reset()
    calls = {PLAIN: call} | {name: partial(call, each) for name, each in speculators.items()}
    turns = take_turns(calls, arguments.repeats, warm_up=0)
    stats = speculators[OURS].stats
    return {
        "beams": beams,
        "prompt_tokens": len(prompt),
        **{name: turns.speedup(name) for name in speculators},
        "tokens_per_call": stats.tokens_per_call,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "same": torch.equal(turns.last(PLAIN), turns.last(OURS)),
        "seconds": turns.seconds,
    }
