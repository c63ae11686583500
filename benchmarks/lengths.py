"""Decoding speed by the prompt's length: the defaults against fixed draft lengths and trees.

Plain generate and prompt lookup are compared, too, in a cell for each task and length. A prompt is
prefilled once for all of them. It takes two hours or more. Cells that the file of results has
already are left out.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import write
from benchmarks.prefilled import prefilled_model
from ngramspec.cli.options import Options, UsageError, check_least, console, load_model, usable
from ngramspec.measure.bench import EndToEnd, Measured, Plan, by_model, summarize
from ngramspec.measure.calls import Configuration, usual_configurations
from ngramspec.measure.forwards import POSITIONS_AFTER_TEXT, forced_model
from ngramspec.measure.models import LoadedModel
from ngramspec.measure.tasks import Prompt, fit, read_tasks

LENGTHS = (500, 1000, 2000, 4000, 8000)
GAMMAS, TREES = (5, 10, 20), (8, 16, 32)
AUTO, LOOKUP = "ngramspec", "prompt lookup"


def add_arguments(options: Options) -> None:
    options.model()
    options.add(
        "--prompts",
        type=Path,
        metavar="FILE",
        required=True,
        help="JSON lines with group, id and prompt, a text or token ids",
    )
    options.add(
        "--tasks",
        nargs="+",
        metavar="TASK",
        default=["summarization", "context_qa", "code_edit"],
        help="groups of the file (default: summarization context_qa code_edit)",
    )
    options.add(
        "--lengths",
        nargs="+",
        type=int,
        metavar="N",
        default=list(LENGTHS),
        help="cut or fill every prompt to N tokens (default: 500 1000 2000 4000 8000)",
    )
    options.count("--prompts-per-cell", 6, "prompts of each task and length")
    options.count("--max-new-tokens", 80, "new tokens of each call")
    options.count("--repeats", 3, "timed calls of each prompt and configuration")
    options.add(
        "--into",
        type=Path,
        metavar="FILE",
        required=True,
        help="results as JSON, written after each cell; cells that it holds are not run again",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure the cells that are missing, and print the share of the best of each."""
    check_least(arguments, repeats=1, max_new_tokens=2, prompts_per_cell=1)
    cells = [(t, n) for n in arguments.lengths for t in arguments.tasks]
    known = _read(arguments.into)
    done = {(each["task"], each["length"]) for each in known}
    missing = [each for each in cells if each not in done]
    screen = console()
    if missing:
        loaded = load_model(arguments)
        settings = {"model": loaded.name, "dtype": arguments.dtype, "device": arguments.device}
        for task, length in missing:
            with screen.status(f"{task}, {length} tokens"):
                known.append(_cell(arguments, loaded, task, length))
            fields = {"settings": settings, "cells": known}
            write(arguments, fields, "into")
    for cell in known:
        screen.print(line_of(cell), highlight=False, markup=False)
    return 0


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with usable("--into"):
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
    prompts = _prompts(arguments, loaded, task, length)
    plan: Plan = Plan(
        repeats=arguments.repeats,
        new=arguments.max_new_tokens,
        least=2,
        prompts=arguments.prompts_per_cell,
        same_text=True,
    )
    with ExitStack() as stack:
        read = stack.enter_context(prefilled_model(loaded.model))
        set_text = stack.enter_context(
            forced_model(loaded.model, length + plan.new + POSITIONS_AFTER_TEXT)
        )
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
        "seconds": _seconds(measured),
        "costs": [{"context": at, "seconds": each} for at, each in measured.costs.values()],
        "skipped": measured.skipped,
    }


def _seconds(measured: Measured) -> dict[str, dict[str, list[float]]]:
    """Seconds of each call, by prompt and configuration, in the order of the repeats."""
    found: dict[str, dict[str, list[float]]] = {}
    for call in measured.calls:
        of_way = found.setdefault(call.prompt, {}).setdefault(call.way, [])
        of_way.append(round(call.seconds, 4))
    return found


def _prompts(
    arguments: argparse.Namespace, loaded: LoadedModel, task: str, length: int
) -> list[Prompt]:
    """The task's prompts, of ``length`` tokens each."""
    with usable("--prompts"):
        pool = read_tasks(arguments.prompts, partial(loaded.encode, chat=True))
    mine = [each for each in pool if each.task == task]
    if not mine:
        raise UsageError(f"--tasks: the file has no prompts of {task}")
    return fit(mine, length)


def line_of(cell: dict[str, Any]) -> str:
    """A cell in a line: the defaults' speed against the baseline, our best and prompt lookup."""
    speeds = {row["way"]: row["ratio"] for row in cell["summary"]}
    ours = {way: each for way, each in speeds.items() if way.startswith(AUTO)}
    best = max(ours, key=lambda way: ours[way])
    lookup = [each for way, each in speeds.items() if way.startswith(LOOKUP)]
    to_lookup = "" if not lookup else f"; {ours[AUTO] / lookup[0]:.2f} of {LOOKUP}"
    shares = f"{ours[AUTO] / ours[best]:.3f} of {best}{to_lookup}"
    return f"{cell['length']:>5} {cell['task']}: {ours[AUTO]:.2f} of the baseline; {shares}"
