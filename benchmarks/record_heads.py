"""Record a head for ``benchmarks heads``: the early exit of a model along recorded outputs.

    python -m benchmarks record_heads --traces traces.jsonl --layers 20 --output recorded

It writes the traces with the whole model's top-k tokens (``recorded.jsonl``, for the synthetic
head) and the early exit's (``recorded.exit.jsonl``). The model reads the recorded text, so a row
holds what the head drafts at any depth while all tokens before are right.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ngramspec.hf_model.assistants.early_exit import early_exit
from ngramspec.measure.models import load
from ngramspec.measure.traces import TopTokens, Trace, by_group, read_traces, write_traces
from ngramspec.verification.evidence import leading

TOP_K = 8
LAYERS, CONTEXT = 20, 1024  # of the early exit; prompt tokens that the model reads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--output", required=True, help="the files' names without .jsonl")
    parser.add_argument("--model", help="a folder or a hub id (default: the embedded one)")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--count", type=int, default=1000, help="most traces of each group")
    parser.add_argument("--most", type=int, default=600, help="most tokens of an output")
    parser.add_argument("--context", type=int, default=CONTEXT, help="last prompt tokens it reads")


def run(arguments: argparse.Namespace) -> int:
    """Record, and write both files."""
    model = load(arguments.model, arguments.dtype).model
    groups = by_group(read_traces(arguments.traces))
    traces = [trace for each in groups.values() for trace in each[: arguments.count]]
    traces = [replace(trace, output=trace.output[: arguments.most]) for trace in traces]
    whole = Path(f"{arguments.output}.jsonl")
    early = Path(f"{arguments.output}.exit.jsonl")
    write_traces(whole, recorded(model, traces, arguments.context))
    exits = early_exit(model, arguments.layers)
    write_traces(early, recorded(exits, traces, arguments.context))
    return 0


def recorded(model: Any, traces: list[Trace], context: int) -> Iterator[Trace]:
    """The traces with a model's most probable tokens at the outputs' positions."""
    for trace in traces:
        text = [*trace.prompt.tolist()[-context:], *trace.output.tolist()]
        count = len(trace.output)
        with torch.inference_mode():
            logits = model(
                input_ids=torch.tensor([text[:-1]]), logits_to_keep=count, use_cache=False
            ).logits[0, -count:]
            ids, log_probs = leading(logits.float(), TOP_K)
        rows = TopTokens(ids.int().numpy(), log_probs.numpy())
        yield replace(trace, top_tokens=rows)
