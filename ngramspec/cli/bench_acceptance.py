"""The benchmark ``acceptance``: drawn drafts against the most frequent token, under sampling."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ngramspec.cli.arguments import check_least, usable


def declare(commands: Any) -> None:
    """Declare the subcommand and its options."""
    parser = commands.add_parser(
        "acceptance",
        help="sampled verification: Algorithm 1 against exact match, observed and by formula",
        description="Sample behind passages of Python's own library with n-gram drafts: drawn from"
        " the counts and verified by Algorithm 1 (Leviathan et al. 2023), drawn and verified by"
        " exact match, and the most frequent continuation. alpha is accepted / tested tokens;"
        " beside it the mean probability that the formulas give at the same positions.",
    )
    parser.add_argument("--model", metavar="MODEL", help="folder or hub id (default: SmolLM2)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="float32")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.3, 0.7, 1.0])
    parser.add_argument(
        "--draft-temperatures", nargs="+", type=float, default=[0.5, 1.0], metavar="T"
    )
    parser.add_argument("--count", type=int, default=10, metavar="N", help="prompts (default: 10)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--gamma", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write everything found")
    parser.set_defaults(benchmark=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure; print a table; write it."""
    import warnings

    from ngramspec import Speculator
    from ngramspec.bench.acceptance import measure
    from ngramspec.bench.machine import machine
    from ngramspec.bench.prompts import library_prompts
    from ngramspec.cli.bench import write
    from ngramspec.cli.e2e_view import console
    from ngramspec.cli.measure import Measurement
    from ngramspec.cli.models import load
    from ngramspec.errors import check_real

    warnings.simplefilter("ignore")  # the library's sources have some
    check_least(arguments, count=1, tokens=1, gamma=1)
    with usable():
        for value in arguments.temperatures:
            check_real("--temperatures", value, 0.0, float("inf"))
        for value in arguments.draft_temperatures:
            check_real("--draft-temperatures", value, 0.0, float("inf"))
    screen = console()
    loaded = load(arguments.model, arguments.dtype, on_stage=lambda stage: None)
    measurement = Measurement(loaded, Speculator(), arguments.tokens)
    prompts = [
        measurement.encode(each.text, chat=True) for each in library_prompts(arguments.count)
    ]
    rows = []
    with screen.status("sampling"):
        for temperature in arguments.temperatures:
            for draft_temperature in arguments.draft_temperatures:
                found = measure(
                    loaded.model,
                    prompts,
                    new=arguments.tokens,
                    gamma=arguments.gamma,
                    temperature=temperature,
                    draft_temperature=draft_temperature,
                )
                watched = next(iter(found.values()))
                rows += [
                    {
                        "temperature": temperature,
                        "draft_temperature": draft_temperature,
                        "way": way,
                        "alpha": tally.alpha,
                        "formula": watched.formula(way),
                        "tokens_per_call": tally.tokens_per_call,
                        **asdict(tally),
                    }
                    for way, tally in found.items()
                ]
    screen.print(_table(rows))
    names = ("dtype", "count", "tokens", "gamma")
    settings = {"model": loaded.name, **{name: getattr(arguments, name) for name in names}}
    write(arguments.json, {"settings": settings, "where": machine(), "rows": rows})
    return 0


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    for name in ("T", "draft T"):
        table.add_column(name, justify="right")
    table.add_column("way")
    for name in ("tested", "alpha", "by formula", "tokens per call"):
        table.add_column(name, justify="right")
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
