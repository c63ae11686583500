"""Batches of recorded prompts: plain generate and ngramspec in turn, in one process.

    python -m benchmarks batch --traces traces.jsonl --groups context_qa code_edit nothing \\
        --json batch.json

The embedded model continues the prompts of each group with its own text, greedily, without an end
of sequence. Where a group has too few prompts of at most ``--longest`` tokens, longer ones are cut
to their end. In the group "nothing" all rows have the same prompt, and a random text is forced, so
that nothing can be predicted. Each turn has a new Speculator. Times are of a whole call, prefill
included. Compare the ratios of medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import (
    add_run,
    counted,
    padded,
    prepared_call,
    recorded_prompts,
    show_and_write,
)
from ngramspec import Speculator
from ngramspec.cli.options import Options, UsageError
from ngramspec.measure.calls import PLAIN, take_turns
from ngramspec.measure.forwards import forced_model
from ngramspec.measure.models import load
from ngramspec.measure.traces import read_traces

SIZES = (1, 2, 4, 8, 16)
NOTHING = "nothing"
OURS = "ours"


def add_arguments(options: Options) -> None:
    options.add("--traces", type=Path, required=True)
    options.add("--groups", nargs="+", default=["context_qa", "code_edit"])
    options.add("--sizes", nargs="+", type=int, default=SIZES)
    options.add("--longest", type=int, default=400, help="most tokens of a prompt")
    options.add("--warm-up", type=int, default=1, help="turns before that are not counted")
    add_run(options, repeats=3, new=96)


def run(arguments: argparse.Namespace) -> int:
    names = ("group", "batch", "ratio", "worst", "tokens_per_call", "same_rows")
    return show_and_write(arguments, measured(arguments), *names)


def measured(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each group and size."""
    model = load(None, arguments.dtype).model
    for group in arguments.groups:
        prompts = prompts_of(group, arguments)
        nothing = group == NOTHING
        text = random_text(model, prompts[0], arguments.max_new_tokens) if nothing else None
        with forced_model(model, 4096) as set_text:
            set_text(text)
            for size in arguments.sizes:
                yield {"group": group, **measure(model, prompts[:size], arguments)}


def prompts_of(group: str, arguments: argparse.Namespace) -> list[list[int]]:
    """One prompt of a group for each row of the largest batch."""
    longest, most = arguments.longest, max(arguments.sizes)
    if group == NOTHING:
        traces = read_traces(arguments.traces)
        first = next(each for each in traces if len(each.prompt) >= longest)
        return [first.prompt.tolist()[-longest:]] * most
    prompts = recorded_prompts(arguments.traces, group, longest, cut=True)
    if len(prompts) < most:
        raise UsageError(f"--sizes must be at most {len(prompts)} for {group!r}; got {most}")
    return prompts[:most]


def random_text(model: Any, prompt: list[int], new: int) -> list[int]:
    """A prompt followed by random tokens."""
    make = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, model.config.vocab_size, (new,), generator=make)
    return [*prompt, *tokens.tolist()]


def measure(model: Any, prompts: list[list[int]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of the baseline and of ngramspec."""
    new = arguments.max_new_tokens
    inputs = padded(prompts)
    call = prepared_call(model, inputs, new)

    calls = {PLAIN: lambda: counted(call), OURS: lambda: counted(call, Speculator())}
    turns = take_turns(calls, arguments.repeats, warm_up=arguments.warm_up)
    (plain, _), (ours, stats) = turns.last(PLAIN), turns.last(OURS)
    steps = stats.draft_seconds + stats.forward_seconds + stats.other_seconds
    median = {name: turns.median(name) for name in calls}
    return {
        "batch": len(prompts),
        "prompt_tokens": inputs["input_ids"].shape[1],
        "plain": len(prompts) * new / median[PLAIN],
        "ours": len(prompts) * new / median[OURS],
        "ratio": median[PLAIN] / median[OURS],
        "worst": min(turns.speedups(OURS)),
        "tokens_per_call": stats.tokens_per_call,
        "forward_share": stats.forward_seconds / steps,
        "draft_share": stats.draft_seconds / steps,
        "same_rows": int((plain == ours).all(dim=1).sum()),
        "seconds": turns.seconds,
    }
