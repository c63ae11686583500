"""Batches of recorded prompts: plain generate and ngramspec in turn, in one process.

    python -m benchmarks batch --traces traces.jsonl --groups context_qa code_edit nothing \\
        --json batch.json

The embedded model continues the prompts of each group with its own text, greedily, without an end
of sequence. Prompts longer than ``--longest`` are used, cut to their end, where a group has too few
others. In the group "nothing" all rows are one prompt behind which a random text is forced, so that
nothing can be predicted. Times are of a whole call, prefill included; what counts are the ratios of
medians. Every turn has a new Speculator.
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.measure.forced import forced_model
from ngramspec.measure.machine import machine
from ngramspec.measure.models import load
from ngramspec.measure.traces import read_traces

SIZES = (1, 2, 4, 8, 16)
NOTHING = "nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--groups", nargs="+", default=["context_qa", "code_edit"])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--longest", type=int, default=400, help="most tokens of a prompt")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1, help="turns before that are not counted")
    parser.add_argument(
        "--cpu-time", action="store_true", help="the process's, for machines that others use too"
    )
    parser.add_argument("--chains", action="store_true", help="drafts without branches, too")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path, help="where to write the raw times")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    model, new = load(None, arguments.dtype).model, arguments.max_new_tokens
    rows = []
    print(
        f"{'group':<12}{'batch':>6}{'plain':>8}{'ours':>8}{'ratio':>7}{'worst':>7}{'tok/call':>9}"
        f"{'same':>7}"
    )
    for group in arguments.groups:
        prompts = prompts_of(group, arguments)
        text = random_text(model, prompts[0], new) if group == NOTHING else None
        with forced_model(model, 4096) as set_text:
            set_text(text)
            for size in arguments.sizes:
                row = {"group": group, **measure(model, prompts[:size], new, arguments)}
                rows.append(row)
                print(
                    f"{group:<12}{size:>6}{row['plain']:>8.1f}{row['ours']:>8.1f}"
                    f"{row['ratio']:>6.2f}x{row['worst']:>6.2f}x{row['tokens_per_call']:>9.2f}"
                    f"{row['same_rows']:>4}/{size}"
                    + (f"  chains {row['chains_ratio']:.2f}x" if arguments.chains else ""),
                    flush=True,
                )
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        result = {"settings": settings, "machine": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def prompts_of(group: str, arguments: argparse.Namespace) -> list[list[int]]:
    """As many prompts of a group as the largest batch has rows, the short ones first."""
    longest, most = arguments.longest, max(arguments.sizes)
    traces = read_traces(arguments.traces)
    if group == NOTHING:
        first = next(each for each in traces if len(each.prompt) >= longest)
        return [first.prompt.tolist()[-longest:]] * most
    prompts = [each.prompt.tolist() for each in traces if each.group == group]
    prompts.sort(key=lambda prompt: len(prompt) > longest)
    return [prompt[-longest:] for prompt in prompts[:most]]


def random_text(model: Any, prompt: list[int], new: int) -> list[int]:
    """A prompt with random tokens behind it."""
    make = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, model.config.vocab_size, (new,), generator=make)
    return [*prompt, *tokens.tolist()]


def measure(
    model: Any, prompts: list[list[int]], new: int, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Tokens per second of both ways."""
    clock = process_time if arguments.cpu_time else perf_counter
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
    inputs = {"input_ids": ids, "attention_mask": mask}
    kwargs = {"do_sample": False, "max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    seconds |= {"chains": []} if arguments.chains else {}
    for turn in range(arguments.warm_up + arguments.repeats):
        speculator = Speculator()
        times = [clock()]
        plain = model.generate(**inputs, **kwargs)
        times.append(clock())
        ours = generate(model, **inputs, speculator=speculator, **kwargs)
        times.append(clock())
        if arguments.chains:
            generate(model, **inputs, speculator=Speculator(tree=None), **kwargs)
            times.append(clock())
        if turn >= arguments.warm_up:
            for way, (begin, end) in zip(seconds, pairwise(times), strict=True):
                seconds[way].append(end - begin)
    stats = speculator.stats
    steps = stats.draft_seconds + stats.forward_seconds + stats.other_seconds
    turns = zip(seconds["plain"], seconds["ours"], strict=True)
    return {
        "batch": len(prompts),
        "prompt_tokens": longest,
        "plain": len(prompts) * new / median(seconds["plain"]),
        "ours": len(prompts) * new / median(seconds["ours"]),
        "ratio": median(seconds["plain"]) / median(seconds["ours"]),
        **chains_of(seconds),
        "worst": min(plain / ours for plain, ours in turns),
        "tokens_per_call": stats.tokens_per_call,
        "forward_share": stats.forward_seconds / steps,
        "draft_share": stats.draft_seconds / steps,
        "same_rows": int((plain == ours).all(dim=1).sum()),
        "seconds": seconds,
    }


def chains_of(seconds: dict[str, list[float]]) -> dict[str, float]:
    """The ratio of drafts without branches, where they were measured."""
    if "chains" not in seconds:
        return {}
    return {"chains_ratio": median(seconds["plain"]) / median(seconds["chains"])}
