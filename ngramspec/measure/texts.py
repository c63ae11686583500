"""Text available on every machine: the source of Python's library."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def library() -> Iterator[str]:
    """The source of Python's library, file by file."""
    found: list[Path] = []
    for top in Path(sysconfig.get_path("stdlib")).iterdir():
        if top.name != "site-packages":
            found += top.rglob("*.py") if top.is_dir() else [top] if top.suffix == ".py" else []
    for path in sorted(found):
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def modules() -> Iterator[tuple[str, ast.Module]]:
    """The source and the syntax tree of each file of Python's library that can be parsed."""
    for source in library():
        try:
            yield source, ast.parse(source)
        except (SyntaxError, ValueError):  # the tests of the parser
            continue
