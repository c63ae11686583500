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
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from benchmarks.harness import add_run, padded, prepared_call, recorded_prompts, write
from ngramspec import Speculator
from ngramspec.measure.models import load
from ngramspec.measure.turns import PLAIN, take_turns

UNDRAFTED, OURS = "undrafted", "ours"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--group", default="context_qa")
    parser.add_argument("--longest", type=int, default=400, help="leave longer prompts out")
    parser.add_argument("--count", type=int, default=3, help="prompts")
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--gamma", type=int, help="tokens of a beam's draft; default: by cost")
    add_run(parser, repeats=1, new=48)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    model = load(None, arguments.dtype).model
    prompts = recorded_prompts(arguments.traces, arguments.group, arguments.longest)
    rows = []
    print(f"{'beams':>5}{'prompt':>8}{'undrafted':>11}{'ours':>8}{'tok/call':>10}{'same':>6}")
    for beams in arguments.beams:
        ours = Speculator(gamma=arguments.gamma or "auto")
        speculators = {UNDRAFTED: Speculator("none"), OURS: ours}
        for prompt in prompts[: arguments.count]:
            row = measure(model, prompt, beams, speculators, arguments)
            rows.append(row)
            print(
                f"{beams:>5}{row['prompt_tokens']:>8}{row[UNDRAFTED]:>10.2f}x{row[OURS]:>7.2f}x"
                f"{row['tokens_per_call']:>10.2f}{row['same']!s:>6}",
                flush=True,
            )
        of_beams = [row for row in rows if row["beams"] == beams]
        means = [geometric_mean(row[name] for row in of_beams) for name in (UNDRAFTED, OURS)]
        print(f"{beams:>5}{'mean':>8}{means[0]:>10.2f}x{means[1]:>7.2f}x")
    write(arguments, {"rows": rows})
    return 0


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
