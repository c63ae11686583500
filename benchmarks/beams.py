"""Beam search of recorded prompts: plain generate and ngramspec in turn, in one process.

    python -m benchmarks beams --traces traces.jsonl --group context_qa --json beams.json

The embedded model continues the prompts of one group by beam search. Times are of a whole call,
prefill included; what counts are the ratios of one turn's times. "undrafted" is ngramspec without
drafts: what the prefill of one row for each prompt and the copies of changed rows alone are worth.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.measure.machine import machine
from ngramspec.measure.models import load
from ngramspec.measure.traces import read_traces

WAYS = ("plain", "undrafted", "ours")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--group", default="context_qa")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--longest", type=int, default=400, help="leave longer prompts out")
    parser.add_argument("--count", type=int, default=3, help="prompts")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--beams", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--gamma", type=int, help="tokens of a beam's draft; default: by cost")
    parser.add_argument("--tree", type=int, help="nodes of a beam's draft; default: no branches")
    parser.add_argument("--json", type=Path, help="where to write the raw times")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, write the JSON."""
    model = load(None, arguments.dtype).model
    traces = [each for each in read_traces(arguments.traces) if each.group == arguments.group]
    prompts = [each.prompt.tolist() for each in traces if len(each.prompt) <= arguments.longest]
    prompts = prompts[: arguments.count]
    rows = []
    print(f"{'beams':>5}{'prompt':>8}{'undrafted':>11}{'ours':>8}{'tok/call':>10}{'same':>6}")
    for beams in arguments.beams:
        ours = Speculator(gamma=arguments.gamma or "auto", tree=arguments.tree or "auto")
        speculators = {"undrafted": Speculator("none"), "ours": ours}
        for prompt in prompts:
            row = measure(model, prompt, beams, speculators, arguments)
            rows.append(row)
            print(
                f"{beams:>5}{row['prompt_tokens']:>8}{row['undrafted']:>10.2f}x{row['ours']:>7.2f}x"
                f"{row['tokens_per_call']:>10.2f}{row['same']!s:>6}",
                flush=True,
            )
        of = [row for row in rows if row["beams"] == beams]
        means = {way: geometric_mean(row[way] for row in of) for way in WAYS[1:]}
        print(f"{beams:>5}{'mean':>8}{means['undrafted']:>10.2f}x{means['ours']:>7.2f}x")
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        result = {"settings": settings, "machine": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(
    model: Any, prompt: list[int], beams: int, speculators: dict[str, Speculator], arguments: Any
) -> dict[str, Any]:
    """Plain's time divided by that of each way, the median of some turns."""
    ids = torch.tensor([prompt])
    new = arguments.max_new_tokens
    kwargs = {"do_sample": False, "num_beams": beams, "max_new_tokens": new, "pad_token_id": 0}
    kwargs |= {"eos_token_id": None, "attention_mask": torch.ones_like(ids)}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    outputs = {}
    speculators["ours"].reset()
    for _ in range(arguments.repeats):
        for way in WAYS:
            begin = perf_counter()
            if way == "plain":
                outputs[way] = model.generate(ids, **kwargs)
            else:
                outputs[way] = generate(model, ids, speculator=speculators[way], **kwargs)
            seconds[way].append(perf_counter() - begin)
    stats = speculators["ours"].stats
    ratios = {
        way: median(p / s for p, s in zip(seconds["plain"], seconds[way], strict=True))
        for way in WAYS[1:]
    }
    return {
        "beams": beams,
        "prompt_tokens": len(prompt),
        **ratios,
        "tokens_per_call": stats.tokens_per_call,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "same": torch.equal(outputs["plain"], outputs["ours"]),
        "seconds": seconds,
    }
