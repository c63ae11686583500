"""Whole calls on a CPU: torch, ngramspec, OpenVINO GenAI, and llama.cpp's own server.

    make .venv-openvino/.ready    # builds llama.cpp: a quarter of an hour
    python -m benchmarks openvino --json openvino.json

All have the embedded model: torch with its weights in each ``--dtype``, the others with weights of
8 bits, from a GGUF file of type Q8_0 that is made of the embedded file. The prompts, as token ids,
are those of the public traces for three tasks, and summaries of two longer texts. Texts are greedy
and end where the model ends them. One engine runs at a time, in a separate process, with as many
threads as torch has here, and no cache of earlier prompts. Times are of a whole call with prefill.
A task's figure is the median of its prompts' tokens per second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

from benchmarks.engines.quantized import ENGINES, LOOKUP, NGRAMS, Timed
from benchmarks.harness import ROOT, padded, prepared_call, show, write
from benchmarks.models import long, prompt_of
from benchmarks.traces import PUBLIC
from ngramspec import Speculator
from ngramspec.cli.options import DTYPES, CommandOptions, UsageError
from ngramspec.measure.calls import PLAIN, first_difference, take_turns
from ngramspec.measure.models import load
from ngramspec.measure.traces import read_traces

ENVIRONMENT = ROOT / ".venv-openvino"
TASKS = ("summary", "chat", "edit")  # of a chat, the second turns
CODE = "```python\n"  # begins the answer to an edit, else some engines begin it in prose
LENGTHS, LONGER = range(240, 1100), (500, 1000)  # tokens of prompts, and of the longer texts


def add_arguments(options: CommandOptions) -> None:
    options.add("--dtype", nargs="+", choices=DTYPES, default=["bfloat16", "float32"])
    options.count("--prompts-per-task", 5, "prompts of each task")
    options.count("--repeats", 3, "timed calls of each prompt and way")
    options.count("--max-new-tokens", 96, "most new tokens of each call")
    options.json()


def run(arguments: argparse.Namespace) -> int:
    if not (ENVIRONMENT / ".ready").exists():
        raise UsageError("there is no .venv-openvino; run: make .venv-openvino/.ready")
    prompts = chosen(arguments.prompts_per_task)
    rows, texts = list[dict[str, Any]](), list[list[int]]()
    for way, calls in measured([*prompts.values()], arguments):
        texts = texts or [ids for ids, _ in calls]  # of the first way
        for (task, name), (ids, seconds), text in zip(prompts, calls, texts, strict=True):
            row = {"way": way, "task": task, "prompt": name}
            counts = {"prompt_tokens": len(prompts[task, name]), "new_tokens": len(ids)}
            rate = {"tokens_per_second": len(ids) / median(seconds), "seconds": seconds}
            rows.append({**row, **counts, **rate, "differs_at": first_difference(text, ids)})
        show(way=way, **medians(rows)[way])
    found = {"engines": other("versions"), "lookup": LOOKUP, "ngrams": NGRAMS}
    write(arguments, {**found, "tokens_per_second": medians(rows), "rows": rows})
    return 0


def chosen(count: int) -> dict[tuple[str, str], list[int]]:
    """The first prompts of each task by task and name, the longer ones before the others."""
    loaded, found = load(None, "bfloat16"), dict[tuple[str, str], list[int]]()
    for text in (list(long([length]))[at] for at, length in enumerate(LONGER)):
        found["summary", f"{text.group} {text.id}"] = prompt_of(loaded, text)
    for each in read_traces(PUBLIC):
        if each.group in TASKS and (each.group != "chat" or each.id.endswith(" 2")):
            begun = loaded.encode(CODE, chat=False) if each.group == "edit" else []
            found[each.group, each.id] = [*each.prompt.tolist(), *begun]
    fitting = [key for key, ids in found.items() if len(ids) in LENGTHS]
    of_tasks = ([key for key in fitting if key[0] == task][:count] for task in TASKS)
    return {key: found[key] for keys in of_tasks for key in keys}


def measured(
    prompts: list[list[int]], arguments: argparse.Namespace
) -> Iterator[tuple[str, Timed]]:
    """The calls of each way, one engine after the other."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for dtype in arguments.dtype:
            for way, calls in pool.apply(torch_calls, (dtype, prompts, arguments)).items():
                yield f"{way} {dtype}", calls
    given = {"prompts": prompts, "threads": torch.get_num_threads()}
    given |= {"new": arguments.max_new_tokens, "repeats": arguments.repeats}
    for engine in ENGINES:
        for way, drafts in ((PLAIN, False), ("own drafts", True)):
            yield f"{engine} {way}", other("calls", engine=engine, drafts=drafts, **given)


def torch_calls(
    dtype: str, prompts: list[list[int]], arguments: argparse.Namespace
) -> dict[str, Timed]:
    """Plain ``generate``, and ngramspec with a new Speculator for each call, in turn."""
    loaded, found = load(None, dtype), dict[str, Timed]()
    ends = {"eos_token_id": loaded.eos_ids, "pad_token_id": loaded.eos_ids[0]}
    for number, ids in enumerate(prompts):
        call = prepared_call(loaded.model, padded([ids]), arguments.max_new_tokens, **ends)
        ways = {"torch": call, "ngramspec": speculating(call)}
        turns = take_turns(ways, arguments.repeats, warm_up=int(not number), first=number)
        for way, seconds in turns.seconds.items():
            new = turns.last(way)[0, len(ids) :].tolist()
            found.setdefault(way, []).append((new, seconds))
    return found


def speculating(call: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor]:
    return lambda: call(Speculator())


def other(function: str, **given: Any) -> Any:
    """What a function of ``engines.quantized`` returns in the other environment."""
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "benchmarks.engines.quantized", function]
    printed = subprocess.check_output(command, cwd=ROOT, input=json.dumps(given), text=True)
    return json.loads(printed.splitlines()[-1])


def medians(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Tokens per second by way and task."""
    rates: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        of_task = rates.setdefault(row["way"], {}).setdefault(row["task"], [])
        of_task.append(row["tokens_per_second"])
    return {way: {task: median(each) for task, each in of.items()} for way, of in rates.items()}
