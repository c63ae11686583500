"""Tables of ``bench e2e`` and ``bench profile``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ngramspec.cli import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

INSTALL_RICH = "pip install 'ngramspec[demo]'"
COLUMNS = (
    "",
    "tokens/s",
    "to plain",
    "median",
    "worst",
    "tokens/call",
    "mean cost",
    "of limit",
    "peak MB",
    "same text",
)


def console() -> Console:
    """Where tables go, wide enough for them where it is no terminal."""
    if find_spec("rich") is None:
        raise UsageError(f"the tables need rich; run: {INSTALL_RICH}")
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=150)


def e2e_tables(rows: Sequence[dict[str, Any]]) -> Iterator[Table]:
    """A table for each task and length."""
    from rich.table import Table

    for task, length in dict.fromkeys((row["task"], row["length"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["length"]) == (task, length)]
        prompts = mine[0]["prompts"]
        title = f"{task}, {prompts} prompts" + (f" of {length} tokens" if length else "")
        table = Table(title=title, title_justify="left")
        for name in COLUMNS:
            table.add_column(name, justify="right" if name else "left")
        for row in mine:
            table.add_row(*_cells(row))
        yield table


def profile_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line for each text and way: a step's time and its shares."""
    from rich.table import Table

    from ngramspec.bench.profile import SECTIONS

    table = Table(title="share of a step after the prefill", title_justify="left")
    for name in ("text", "", "steps", "ms/step", *SECTIONS):
        table.add_column(name, justify="right" if name not in ("text", "") else "left")
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


def _cells(row: dict[str, Any]) -> list[str]:
    def number(name: str, form: str) -> str:
        return "-" if row[name] is None else format(row[name], form)

    peak = row["peak_bytes"]
    same = f"{row['same']}/{row['prompts']}"
    if differences := row["first_differences"]:
        same += f", first at {min(differences.values())}"
    return [
        row["way"],
        number("tokens_per_second", ".1f"),
        number("ratio", ".3f"),
        number("ratio_median", ".3f"),
        number("ratio_worst", ".3f"),
        number("tokens_per_call", ".2f"),
        number("mean_cost", ".3f"),
        number("limit_share", ".1%"),
        "-" if peak is None else f"{peak / 1e6:.0f}",
        same,
    ]
