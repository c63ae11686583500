"""The tables that ``ngramspec bench`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.measure.wording import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec.measure.whole_calls import Measured

NUMBERS = {  # by title: a field of a row, and its format
    "tokens/s": ("tokens_per_second", ".1f"),
    "speedup": ("ratio", ".3f"),
    "median": ("ratio_median", ".3f"),
    "worst": ("ratio_worst", ".3f"),
    "tokens/call": ("tokens_per_call", ".2f"),
    "mean cost": ("mean_cost", ".3f"),
    "of limit": ("limit_share", ".1%"),
}


def show(screen: Console, rows: Sequence[dict[str, Any]], measured: Measured) -> None:
    """Print the tables, and what was not measured."""
    for table in tables(rows):
        screen.print(table)
    for way, reason in measured.skipped.items():
        screen.print(f"skipped: {way}: {reason}", markup=False, highlight=False)
    for way, count in measured.compiling.items():
        screen.print(f"{way}: {counted(count, 'call')} repeated, something was compiled in them")
    for task, count in measured.left_out.items():
        left_out = counted(count, "prompt")
        screen.print(f"{task}: {left_out} left out because the plain output is too short")


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """A table for each task and length."""
    from rich.table import Table

    for task, length in dict.fromkeys((row["task"], row["length"]) for row in rows):
        same = [row for row in rows if (row["task"], row["length"]) == (task, length)]
        prompts = same[0]["prompts"]
        title = f"{task}, {counted(prompts, 'prompt')}"
        title += f" of {counted(length, 'token')}" if length else ""
        table = Table("", title=title, title_justify="left")
        for name in (*NUMBERS, "peak MB", "same text"):
            table.add_column(name, justify="right")
        for row in same:
            table.add_row(*cells(row))
        yield table


def cells(row: dict[str, Any]) -> list[str]:
    """A row of a table."""
    numbers = [
        "-" if row[name] is None else format(row[name], form) for name, form in NUMBERS.values()
    ]
    peak = row["peak_bytes"]
    same = f"{row['same']}/{row['prompts']}"
    if differences := row["first_differences"]:
        same += f", first at {min(differences.values())}"
    return [row["way"], *numbers, "-" if peak is None else f"{peak / 1e6:.0f}", same]
