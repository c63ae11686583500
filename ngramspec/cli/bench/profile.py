"""The share of drafting, input preparation, forward, verification, rollback, streaming and the rest
of Python in a step: copying a text, and with nothing to predict."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import add_count, add_device, add_model, add_outputs, load_model
from ngramspec.cli.output import console, write_json
from ngramspec.cli.usage import check_least, usable

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY = "where a step's time goes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser)
    add_device(parser)
    add_count(parser, "--max-new-tokens", 96, "new tokens of each call")
    add_count(parser, "--repeats", 3, "calls of each text and way")
    add_count(parser, "--batch", 1, "rows of a call")
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Profile; print and write the results."""
    from ngramspec.bench.machine import machine
    from ngramspec.bench.profile import profile
    from ngramspec.bench.workload import sample_prompts, with_random_texts

    check_least(arguments, repeats=1, max_new_tokens=2, batch=1)
    screen = console()
    loaded = load_model(arguments)
    new = arguments.max_new_tokens
    with usable():
        copying = [each for each in sample_prompts(loaded) if each.task == "code_edit"]
    prompts = with_random_texts(copying, new, loaded)
    with screen.status("profiling"):
        rows = profile(loaded.model, prompts, new, arguments.repeats, arguments.batch)
    screen.print(table(rows))
    settings = {"model": loaded.name, "dtype": arguments.dtype, "device": arguments.device}
    settings["batch"] = str(arguments.batch)
    write_json(arguments.json, {"settings": settings, "where": machine(), "rows": rows})
    return 0


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line for each text and way: the time of a step and its shares."""
    from rich.table import Table

    from ngramspec.bench.profile import SECTIONS

    table = Table(title="share of a step after the prefill", title_justify="left")
    for name in ("text", "", "steps", "ms/step", *SECTIONS):
        table.add_column(name, justify="left" if name in ("text", "") else "right")
    for row in rows:
        share = row["share"]
        table.add_row(
            row["task"],
            row["way"],
            str(row["steps"]),
            f"{1e3 * row['step_seconds']:.2f}",
            *(f"{share[name]:.2%}" if name in share else "" for name in SECTIONS),
        )
    return table
