"""Whole calls of one or several models by task: the baseline, prompt lookup and ngramspec in turn.

    python -m benchmarks models --model FOLDER FOLDER --json models.json

The prompts are those of the public traces, with each model's own template and tokenizer; with
``--texts long`` summaries and answers about Python's own help, cut to ``--lengths`` tokens. A
model generates greedily without penalties, and as its own generation config samples, from the same
seed in all ways. A call ends where the model ends it. Each call of ngramspec has a new Speculator.
Times are of a whole call, prefill included. Results are written after each prompt or batch, and
those that the file has already are left out, so a run can be interrupted (``--seconds``) and
continued.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby, product
from pydoc_data.topics import topics
from time import perf_counter
from typing import Any

import torch

from benchmarks.harness import counted, padded, prepared_call, show, write, written
from benchmarks.traces import Text, texts
from ngramspec import DecodeStats, Speculator
from ngramspec.cli.options import DTYPES, CommandOptions
from ngramspec.measure.calls import PLAIN, WARM_UP_TOKENS, take_turns
from ngramspec.measure.models import LoadedModel, load, locate

OURS, LOOKUPS = "ours", {"lookup 3": 3, "lookup": 10}
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False, "repetition_penalty": 1.0},
    "sampled": {"do_sample": True},
}
LONG = {
    "summary": "Summarize this text in a few sentences:\n\n{}",
    "answer": "{}\n\nWhat does the text say about {topic}? Quote it in your answer.",
}
KEY = ("model", "dtype", "mode", "task", "text")  # of a row
SEED = 0


def add_arguments(options: CommandOptions) -> None:
    options.add("--model", nargs="+", default=[None], help="folders, GGUF files or hub ids")
    options.add("--texts", choices=("public", "long"), default="public")
    options.numbers("--lengths", [4000, 8000], "tokens of the long texts, about")
    options.add("--tasks", nargs="+", help="only these groups of the texts")
    options.add("--dtype", nargs="+", choices=DTYPES, default=["bfloat16", "float32"])
    options.add("--mode", nargs="+", choices=MODES, default=[*MODES])
    options.count("--prompts-per-task", 3, "batches of prompts of each task")
    options.count("--batch", 1, "prompts of a call; several are not compared with prompt lookup")
    options.count("--repeats", 1, "timed calls of each prompt and way")
    options.count("--max-new-tokens", 96, "most new tokens of each call")
    options.add("--seconds", type=float, default=float("inf"), help="begin no call after this time")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    """Measure what the file does not have yet."""
    begun, rows = perf_counter(), written(arguments, "rows")
    known = {tuple(row[name] for name in KEY) for row in rows}
    batches = list(batched(arguments))
    for model in arguments.model:
        for dtype in arguments.dtype:
            name, loaded, warm = locate(model).name, None, False
            for mode, (task, several) in ((m, each) for each in batches for m in arguments.mode):
                values = (name, dtype, mode, task, "+".join(each.id for each in several))
                if values in known:
                    continue
                if perf_counter() - begun > arguments.seconds:
                    print("not done: run it again")
                    return 0
                loaded = loaded or load(model, dtype, on_stage=lambda stage: None)
                key = dict(zip(KEY, values, strict=True))
                found = measure(loaded, several, MODES[mode], arguments, len(rows), warm)
                warm = True
                rows.append({**key, "batch": len(several), **found})
                show(**key, **found["tokens_per_second"], same=found["same_as_plain"][OURS])
                write(arguments, {"rows": rows})
    return 0


def batched(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Text]]]:
    """The texts of each task in batches, with the task; all models have the same ones."""
    chosen = long(arguments.lengths) if arguments.texts == "long" else texts()
    found = sorted(chosen, key=lambda text: text.group)
    for task, group in groupby(found, key=lambda text: text.group):
        if arguments.tasks is None or task.partition(" ")[0] in arguments.tasks:
            of_task, size = list(group), arguments.batch
            for at in range(0, min(arguments.prompts_per_task * size, len(of_task)), size):
                yield task, of_task[at : at + size]


def long(lengths: list[int]) -> Iterator[Text]:
    """A topic of Python's help and those after it, from 8 places; ``prompt_of`` cuts them."""
    names = sorted(topics)
    for length, (task, ask) in product(lengths, LONG.items()):
        for at in range(0, len(names), -(-len(names) // 8)):
            parts = [topics[name] for name in names[at:] + names]
            message = ask.format("{}", topic=parts[0].partition("\n")[0])
            yield Text(f"{task} {length}", names[at], (message,), "\n\n".join(parts))


def prompt_of(loaded: LoadedModel, text: Text) -> list[int]:
    """The token ids of a text: of its first message, or of itself if it is to be continued."""
    if text.messages and text.text:
        ids = loaded.tokenizer(text.text, add_special_tokens=False)["input_ids"]
        part = loaded.tokenizer.decode(ids[: int(text.group.split()[-1])])
        text = replace(text, messages=(text.messages[0].format(part),))
    if text.messages:
        return loaded.encode(text.messages[0], chat=True)
    return loaded.encode(text.text, chat=False)


def measure(
    loaded: LoadedModel,
    several: list[Text],
    mode: dict[str, Any],
    arguments: argparse.Namespace,
    first: int,
    warm: bool,
) -> dict[str, Any]:
    """All ways in turn on one batch: tokens per second, and whether the texts are the same."""
    eos, model = loaded.eos_ids, loaded.model
    inputs = padded([prompt_of(loaded, text) for text in several], (eos or [0])[0])
    prompt = inputs["input_ids"].shape[1]
    given = {**mode, "eos_token_id": eos or None, "pad_token_id": (eos or [0])[0]}

    def call(
        new: int, speculator: Speculator | None = None, **more: Any
    ) -> tuple[list[int], DecodeStats]:
        torch.manual_seed(SEED)
        output, stats = counted(prepared_call(model, inputs, new, **given, **more), speculator)
        return [token for row in output[:, prompt:].tolist() for token in ended(row, eos)], stats

    lookups = LOOKUPS if len(several) == 1 else {}
    ways: dict[str, Callable[[int], tuple[list[int], DecodeStats]]] = {PLAIN: call}
    ways |= {name: partial(call, prompt_lookup_num_tokens=size) for name, size in lookups.items()}
    ways[OURS] = lambda new: call(new, Speculator())
    if not warm:
        for way in ways.values():
            way(WARM_UP_TOKENS)
    calls = {name: partial(way, arguments.max_new_tokens) for name, way in ways.items()}
    turns = take_turns(calls, arguments.repeats, warm_up=0, first=first)
    tokens, stats = {name: turns.last(name)[0] for name in ways}, turns.last(OURS)[1]
    return {
        "prompt_tokens": prompt,
        "new_tokens": {name: len(each) for name, each in tokens.items()},
        "same_as_plain": {name: each == tokens[PLAIN] for name, each in tokens.items()},
        "tokens_per_second": {name: len(tokens[name]) / turns.median(name) for name in ways},
        "tokens_per_call": stats.tokens_per_call,
        "alpha": stats.alpha,
        "seconds": turns.seconds,
    }


def ended(row: list[int], eos: list[int]) -> list[int]:
    """A row's tokens up to the first that ends it."""
    return row[: next((at + 1 for at, token in enumerate(row) if token in eos), len(row))]
