"""Output of results: tables and text on the screen, and all measurements in a JSON file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.options import need, writable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TABLE_COLUMNS = 150  # of a table that is not printed on a terminal
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"


def console() -> Console:
    """The console for tables; wide enough for them if it is not a terminal."""
    need("rich", "the tables need")
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=TABLE_COLUMNS)


def make_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Container[str],
    title: str | None = None,
) -> Table:
    """A table. Its columns are right-justified, except those named in ``left``."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name in left else "right")
    for row in rows:
        table.add_row(*row)
    return table


@contextmanager
def stages(screen: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each stage: lines on stderr, or one line of a terminal."""
    if screen.is_terminal:
        with screen.status("") as status:
            yield status.update
    else:
        yield lambda stage: print(stage, file=sys.stderr, flush=True)


def write_json(arguments: argparse.Namespace, fields: dict[str, Any]) -> None:
    """Write the measurements, the command and the machine to the file of ``--json``, if any."""
    path: Path | None = arguments.json
    if path is None:
        return
    from ngramspec.measure.machine import machine

    found = {"command": arguments.command_line, "where": machine(), **fields}
    with writable("--json", path):
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def printable(text: str) -> str:
    """``text`` with tabs as spaces and without control characters except the newline."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(each if each.isprintable() or each == "\n" else UNPRINTABLE for each in text)


def counted(count: int, noun: str) -> str:
    """A number of things; the plural of the noun must end in s."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
