"""ngramspec and transformers' assisted generation with the same head, in turn.

    python -m benchmarks assisted --prompts prompts.jsonl --assistant FOLDER --json assisted.json
    python -m benchmarks assisted --prompts prompts.jsonl --early-exit 20

The figures are the time of transformers' assisted generation, and of the baseline, relative to that
of ngramspec. Prompts are as of ``ngramspec record``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import ngramspec
from benchmarks.harness import add_json, write
from ngramspec.hf_model.assistants.assistant import read_folder
from ngramspec.measure.models import load
from ngramspec.measure.record import read_prompts

WAYS = ("baseline", "transformers", "ngramspec")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", help="a folder or a hub id (default: the embedded one)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    heads = parser.add_mutually_exclusive_group(required=True)
    heads.add_argument("--assistant", metavar="FOLDER")
    heads.add_argument("--early-exit", type=int, metavar="LAYERS")
    heads.add_argument("--mtp", action="store_true")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure; print a line for each prompt and write the JSON."""
    loaded = load(arguments.model, arguments.dtype)
    head: dict[str, Any] = {"assistant_early_exit": arguments.early_exit}
    if arguments.assistant:
        head = {"assistant_model": read_folder(arguments.assistant, loaded.model)}
    elif arguments.mtp:
        head = {"use_mtp": True}
    speculator, found = ngramspec.Speculator(), []
    for prompt in read_prompts(arguments.prompts):
        ids = torch.tensor([loaded.encode(prompt.text, chat=True)])
        given = {"do_sample": False, "max_new_tokens": arguments.max_new_tokens}
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        texts = {}
        for _ in range(arguments.rounds):
            for way in WAYS:
                began = perf_counter()
                texts[way] = generated(way, loaded.model, ids, given, head, speculator)
                seconds[way].append(perf_counter() - began)
        ours = median(seconds["ngramspec"])
        ratios = {way: median(each) / ours for way, each in seconds.items()}
        same = texts["ngramspec"] == texts["baseline"]
        found.append({"group": prompt.group, "id": prompt.id, "ratios": ratios, "same_text": same})
        values = f"{ratios['transformers']:>8.2f}{ratios['baseline']:>8.2f}"
        print(f"{prompt.group:<16}{prompt.id:<12}{values}  {same}", flush=True)
    write(arguments, {"settings": {"head": sorted(head)}, "results": found})
    return 0


def generated(
    way: str, model: Any, ids: torch.Tensor, given: dict[str, Any], head: Any, speculator: Any
) -> list[list[int]]:
    """The tokens that one of ``WAYS`` generates."""
    if way == "ngramspec":
        out = ngramspec.generate(model, ids, speculator=speculator, **given, **head)
    else:
        out = model.generate(ids, **given, **(head if way == "transformers" else {}))
    tokens: list[list[int]] = out.tolist()
    return tokens
