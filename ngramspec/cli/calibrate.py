"""Measure what a forward of n positions costs here, and save it for Speculator(costs=FILE)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ngramspec.cli import UsageError
from ngramspec.cli.arguments import check_least, load_on_device

SUMMARY = "measure what wider forwards cost on this machine"
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 20, 24, 32, 33, 48, 64, 65)
DTYPES = ("bfloat16", "float16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="folder or hub id (default: embedded SmolLM2)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: bfloat16")
    parser.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")
    parser.add_argument(
        "--contexts",
        type=int,
        nargs="+",
        default=[400, 900],
        metavar="N",
        help="positions in the cache (default: 400 900)",
    )
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="default: 9")
    parser.add_argument("--json", type=Path, metavar="OUT", help="save the costs")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print a table, save.

    Raises:
        UsageError: an argument that cannot be used.
    """
    from rich.console import Console
    from rich.table import Table

    from ngramspec.bench.forwards import forward_seconds
    from ngramspec.draft_length.cost_file import SavedCosts, described

    check_least(arguments, contexts=1, repeats=1)
    loaded = load_on_device(arguments)
    model = loaded.model
    print(f"timing {loaded.name} in {arguments.dtype}", file=sys.stderr)
    seconds = {
        context: forward_seconds(model, context, WIDTHS, arguments.repeats)
        for context in arguments.contexts
    }
    table = Table("positions", *(f"context {context}" for context in seconds), box=None)
    for width in WIDTHS:
        costs = (f"{each[width] / each[1]:.2f}" for each in seconds.values())
        table.add_row(str(width), *costs)
    milliseconds = ", ".join(f"{1000 * each[1]:.1f} ms" for each in seconds.values())
    console = Console()
    console.print(table)
    console.print(f"cost of a forward, in forwards of one position ({milliseconds})")
    if arguments.json is not None:
        try:
            SavedCosts(described(model), seconds).write(arguments.json)
        except OSError as error:
            raise UsageError(f"--json: cannot write {arguments.json}: {error.strerror}") from error
        console.print(f"saved; use Speculator(costs={str(arguments.json)!r})")
    return 0
