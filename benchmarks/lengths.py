"""Decoding speed by the prompt's length: the defaults against fixed draft lengths and trees.

Plain generate and prompt lookup are compared, too, in a cell for each task and length. A prompt is
prefilled once for all of them. It takes two hours or more. Cells that the file of results has
already are left out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import renderers
from benchmarks.harness import write
from benchmarks.prefilled import prefilled_model
from ngramspec.cli.options import Options, UsageError, check_least, load_model, usable
from ngramspec.measure.bench import EndToEnd, Plan, by_model, summarize
from ngramspec.measure.calls import Configuration, usual_configurations
from ngramspec.measure.forwards import POSITIONS_AFTER_TEXT, forced_model
from ngramspec.measure.models import LoadedModel
from ngramspec.measure.tasks import Prompt, fit, read_tasks

LENGTHS = (500, 1000, 2000, 4000, 8000)
TASKS = ("summarization", "context_qa", "code_edit")
GAMMAS, TREES = (5, 10, 20), (8, 16, 32)


def add_arguments(options: Options) -> None:
    options.model()
    help = "JSON lines with group, id and prompt, a text or token ids"
    options.path("--prompts", "FILE", help, required=True)
    options.add("--tasks", nargs="+", default=list(TASKS), help="groups of the file")
    options.numbers("--lengths", list(LENGTHS), "cut or fill every prompt to N tokens")
    options.count("--prompts-per-cell", 6, "prompts of each task and length")
    options.count("--max-new-tokens", 80, "new tokens of each call")
    options.count("--repeats", 3, "timed calls of each prompt and configuration")
    help = "results as JSON, written after each cell; cells that it holds are not run again"
    options.path("--json", "FILE", help, required=True)


def run(arguments: argparse.Namespace) -> int:
    """Measure the cells that are missing, and print all of them."""
    check_least(arguments, repeats=1, max_new_tokens=2, prompts_per_cell=1)
    cells = [(t, n) for n in arguments.lengths for t in arguments.tasks]
    known = _read(arguments.json)
    done = {(each["task"], each["length"]) for each in known}
    missing = [each for each in cells if each not in done]
    if missing:
        loaded = load_model(arguments)
        settings = {"model": loaded.name, "dtype": arguments.dtype, "device": arguments.device}
        for task, length in missing:
            print(f"{task}, {length} tokens", flush=True)
            known.append(_cell(arguments, loaded, task, length))
            write(arguments, {"settings": settings, "cells": known})
    print(renderers.lengths({"cells": known}))
    return 0


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with usable("--json"):
        cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")).get("cells", [])
    return cells


def compared() -> list[Configuration]:
    """What is compared; all chains and trees have the same drafter."""
    fixed: list[dict[str, Any]] = [{"gamma": gamma, "tree": None} for gamma in GAMMAS]
    return usual_configurations(lookups=(10,), trees=TREES, chains=True, speculators=fixed)


def _cell(
    arguments: argparse.Namespace, loaded: LoadedModel, task: str, length: int
) -> dict[str, Any]:
    """Measure one cell: all configurations in turn on all its prompts, with the baseline's text."""
    with usable("--prompts"):
        pool = read_tasks(arguments.prompts, partial(loaded.encode, chat=True))
    prompts = fit([each for each in pool if each.task == task], length)
    if not prompts:
        raise UsageError(f"--tasks: the file has no prompts of {task}")
    plan = Plan(
        repeats=arguments.repeats,
        new=arguments.max_new_tokens,
        least=2,
        prompts=arguments.prompts_per_cell,
        same_text=True,
    )
    room = length + plan.new + POSITIONS_AFTER_TEXT
    with prefilled_model(loaded.model) as read, forced_model(loaded.model, room) as set_text:
        force = by_model(set_text)

        def forcing(prompt: Prompt) -> None:
            set_text(None)
            read(prompt.ids)
            force(prompt)

        with usable():
            measured = EndToEnd(loaded.model, compared(), plan, forcing=forcing).run(prompts)
    return {
        "task": task,
        "length": length,
        "plan": asdict(plan),
        "summary": summarize(measured),
        "costs": [{"context": at, "seconds": each} for at, each in measured.costs.values()],
        "skipped": measured.skipped,
    }
