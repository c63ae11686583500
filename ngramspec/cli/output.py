"""Where results go: tables on the screen, everything measured in a JSON file."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.usage import need_rich, writable

if TYPE_CHECKING:
    from rich.console import Console

PACKAGES = ("ngramspec", "numpy", "torch", "transformers", "arctic-inference")
WIDTH = 150  # columns of a table that is not printed on a terminal


def console() -> Console:
    """Where tables go; wide enough for them if it is no terminal.

    Raises:
        UsageError: rich is not installed.
    """
    need_rich("the tables need")
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=WIDTH)


def write_json(path: Path | None, fields: dict[str, Any]) -> None:
    """Write what was measured, with the command and the machine, as JSON.

    Args:
        path: None: nothing is written.
        fields: values that JSON can hold.

    Raises:
        UsageError: the file cannot be written.
    """
    if path is None:
        return
    from ngramspec.bench.machine import versions
    from ngramspec.costs.saved import processor

    where = {
        "command": shlex.join(["ngramspec", *sys.argv[1:]]),
        "machine": platform.machine(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
    }
    with writable("--json", path):
        path.write_text(json.dumps({**where, **fields}, indent=1) + "\n", encoding="utf-8")


def print_skipped(skipped: dict[str, str]) -> None:
    """Say which peers are not installed, and how to install them."""
    for name, install in skipped.items():
        print(f"skipped: {name} is not installed ({install})")


def print_paths(paths: Iterable[Path]) -> None:
    """Print the names of plots."""
    for path in paths:
        print(path)
