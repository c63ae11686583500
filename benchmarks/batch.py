"""Batches of recorded prompts: plain generate and ngramspec in turn, in one process.

    python benchmarks/batch.py --traces traces.jsonl --group context_qa --json batch.json

The embedded model continues the prompts of one group with its own text, greedily. Times are of
a whole call, prefill included; what counts are the ratios of their medians. Every turn has a new
Speculator.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from first_look import machine

from ngramspec import Speculator, generate
from ngramspec.bench.models import load
from ngramspec.bench.traces import read_traces

SIZES = (1, 2, 4, 8, 16)


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description="plain and ngramspec in turn, by batch size")
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--group", default="context_qa")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "float16"])
    parser.add_argument("--longest", type=int, default=400, help="leave longer prompts out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--json", type=Path, help="where to write the raw times")
    arguments = parser.parse_args()
    model = load(None, arguments.dtype).model
    traces = [each for each in read_traces(arguments.traces) if each.group == arguments.group]
    prompts = [each.prompt.tolist() for each in traces if len(each.prompt) <= arguments.longest]
    rows = []
    print(
        f"{'batch':>5}{'plain':>9}{'ours':>9}{'ratio':>8}{'tok/call':>10}{'forward':>9}{'same':>7}"
    )
    for size in SIZES:
        row = measure(model, prompts[:size], arguments.max_new_tokens, arguments.repeats)
        rows.append(row)
        print(
            f"{size:>5}{row['plain']:>9.1f}{row['ours']:>9.1f}{row['ours'] / row['plain']:>7.2f}x"
            f"{row['tokens_per_call']:>10.2f}{row['forward_share']:>9.1%}{row['same_rows']:>4}/{size}",
            flush=True,
        )
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        result = {"settings": settings, "machine": machine(), "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(model: Any, prompts: list[list[int]], new: int, repeats: int) -> dict[str, Any]:
    """Tokens per second of both ways, after one turn that is not counted."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
    inputs = {"input_ids": ids, "attention_mask": mask}
    kwargs = {"do_sample": False, "max_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for turn in range(repeats + 1):
        speculator = Speculator()
        begin = perf_counter()
        plain = model.generate(**inputs, **kwargs)
        middle = perf_counter()
        ours = generate(model, **inputs, speculator=speculator, **kwargs)
        if turn:
            seconds["plain"].append(middle - begin)
            seconds["ours"].append(perf_counter() - middle)
    stats = speculator.stats
    steps = stats.draft_seconds + stats.forward_seconds + stats.other_seconds
    return {
        "batch": len(prompts),
        "prompt_tokens": longest,
        "plain": len(prompts) * new / median(seconds["plain"]),
        "ours": len(prompts) * new / median(seconds["ours"]),
        "tokens_per_call": stats.tokens_per_call,
        "forward_share": stats.forward_seconds / steps,
        "draft_share": stats.draft_seconds / steps,
        "same_rows": int((plain == ours).all(dim=1).sum()),
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
