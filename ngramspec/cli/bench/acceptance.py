"""Sample after passages of Python's own library with n-gram drafts: sampled from the counts and
verified by Algorithm 1 (Leviathan et al. 2023), sampled and verified by exact match, and the most
frequent continuation. alpha is accepted / tested tokens; next to it the mean probability that the
formulas give at the same positions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import add_count, add_model, add_outputs, load_model
from ngramspec.cli.output import console, write_json
from ngramspec.cli.usage import check_least, usable
from ngramspec.errors import check_real

if TYPE_CHECKING:
    from rich.table import Table

SUMMARY = "sampled verification: Algorithm 1 against exact match, observed and by formula"
SETTINGS = ("dtype", "count", "tokens", "gamma")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_model(parser, dtype="float32", dtypes=("bfloat16", "float32"))
    parser.add_argument(
        "--temperatures",
        nargs="+",
        type=float,
        default=[0.3, 0.7, 1.0],
        metavar="T",
        help="of the target (default: 0.3 0.7 1.0)",
    )
    parser.add_argument(
        "--draft-temperatures",
        nargs="+",
        type=float,
        default=[0.5, 1.0],
        metavar="T",
        help="of the n-gram counts (default: 0.5 1.0)",
    )
    add_count(parser, "--count", 10, "prompts")
    add_count(parser, "--tokens", 128, "new tokens of each")
    add_count(parser, "--gamma", 4, "tokens drafted in a step")
    add_outputs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure; print a table; write it."""
    import warnings

    from ngramspec.bench.machine import machine
    from ngramspec.bench.prompts import library_prompts

    warnings.simplefilter("ignore")  # the library's sources have some
    check_least(arguments, count=1, tokens=1, gamma=1)
    with usable():
        for value in arguments.temperatures:
            check_real("--temperatures", value, 0.0, float("inf"))
        for value in arguments.draft_temperatures:
            check_real("--draft-temperatures", value, 0.0, float("inf"))
    screen = console()
    loaded = load_model(arguments)
    with usable():
        prompts = [loaded.encode(each.text, chat=True) for each in library_prompts(arguments.count)]
    with screen.status("sampling"):
        rows = [*measure_all(arguments, loaded.model, prompts)]
    screen.print(table(rows))
    settings = {"model": loaded.name, **{name: getattr(arguments, name) for name in SETTINGS}}
    write_json(arguments.json, {"settings": settings, "where": machine(), "rows": rows})
    return 0


def measure_all(
    arguments: argparse.Namespace, model: Any, prompts: list[list[int]]
) -> Iterator[dict[str, Any]]:
    """A row for each pair of temperatures and way of verifying."""
    from ngramspec.bench.acceptance import measure

    for target, draft in product(arguments.temperatures, arguments.draft_temperatures):
        found = measure(
            model,
            prompts,
            new=arguments.tokens,
            gamma=arguments.gamma,
            temperature=target,
            draft_temperature=draft,
        )
        watched = next(iter(found.values()))
        for way, tally in found.items():
            yield {
                "temperature": target,
                "draft_temperature": draft,
                "way": way,
                "alpha": tally.alpha,
                "formula": watched.formula(way),
                "tokens_per_call": tally.tokens_per_call,
                **asdict(tally),
            }


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each row."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("T", "draft T", "way", "tested", "alpha", "by formula", "tokens per call"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for row in rows:
        table.add_row(
            f"{row['temperature']:g}",
            f"{row['draft_temperature']:g}",
            row["way"],
            f"{row['tested']:,}",
            f"{row['alpha']:.3f}",
            f"{row['formula']:.3f}",
            f"{row['tokens_per_call']:.2f}",
        )
    return table
