"""ngramspec and transformers' assisted generation with the same assistant, in turn.

    python -m benchmarks assisted --traces traces.jsonl --assistant FOLDER --json assisted.json

The embedded model answers recorded prompts of each group. ngramspec has the assistant as one draft
source besides its tables. Values are speedups over the baseline, in whole calls.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from benchmarks.harness import add_run, padded, recorded_prompts, write
from ngramspec import Speculator, generate
from ngramspec.cli.options import add_count
from ngramspec.hf_model.assistants import read_folder
from ngramspec.measure.models import load
from ngramspec.measure.turns import PLAIN, take_turns

OURS, THEIRS, TABLES = "ngramspec", "transformers", "tables only"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--groups", nargs="+", default=["summary", "answer", "chat", "edit"])
    parser.add_argument("--longest", type=int, default=600, help="leave longer prompts out")
    add_count(parser, "--prompts", 3, "prompts of a group")
    parser.add_argument("--assistant", metavar="FOLDER", required=True)
    add_run(parser, repeats=2, new=64)


def run(arguments: argparse.Namespace) -> int:
    """Measure; print a line for each prompt and write the JSON."""
    model = load(None, arguments.dtype).model
    head = {"assistant_model": read_folder(arguments.assistant, model)}
    speculators = {OURS: Speculator(), TABLES: Speculator()}
    rows = []
    for group in arguments.groups:
        prompts = recorded_prompts(arguments.traces, group, arguments.longest)
        for prompt in prompts[: arguments.prompts]:
            row = measure(model, prompt, head, speculators, arguments)
            rows.append({"group": group, **row})
            values = "".join(f"{row[name]:>8.2f}x" for name in (THEIRS, OURS, TABLES))
            print(f"{group:<10}{len(prompt):>5}{values}{row['same']!s:>7}", flush=True)
    for name in (THEIRS, OURS, TABLES):
        print(f"{name}: {geometric_mean(row[name] for row in rows):.2f}")
    write(arguments, {"rows": rows})
    return 0


def measure(
    model: Any,
    prompt: list[int],
    head: dict[str, Any],
    speculators: dict[str, Speculator],
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    """The median speedups over the baseline on one prompt."""
    given: dict[str, Any] = {"do_sample": False, "max_new_tokens": arguments.max_new_tokens}
    given |= padded([prompt])
    calls = {
        PLAIN: partial(model.generate, **given),
        THEIRS: partial(model.generate, **given, **head),
        OURS: partial(generate, model, speculator=speculators[OURS], **given, **head),
        TABLES: partial(generate, model, speculator=speculators[TABLES], **given),
    }
    turns = take_turns(calls, arguments.repeats, warm_up=0)
    return {
        **{name: turns.speedup(name) for name in (THEIRS, OURS, TABLES)},
        "same": torch.equal(turns.last(PLAIN), turns.last(OURS)),
        "seconds": turns.seconds,
    }
