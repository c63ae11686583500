"""Writes docs/cli.md, the reference of the command line, from the parsers.

Run it after a change of a command or an option: ``python docs/commands.py``.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from ngramspec.cli import build_parser

PAGE = Path(__file__).parent / "cli.md"
BEGIN = """# Command line

Written by `docs/commands.py` from the parsers.
The option `--help` of each command prints the same.
Options in angle brackets are required.
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([BEGIN, *_command(build_parser())])


def _command(parser: argparse.ArgumentParser, level: int = 2) -> Iterator[str]:
    """The sections of a command's subcommands, each with its own subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield f"{'#' * level} {child.prog}\n"
                yield _description(child.description or "")
                yield from _options(child)
                yield from _command(child, level + 1)


def _description(text: str) -> str:
    """The paragraphs of a docstring; indented ones become blocks of text."""
    first, _, rest = text.partition("\n")
    found = []
    for paragraph in f"{first}\n{textwrap.dedent(rest)}".strip().split("\n\n"):
        if paragraph.startswith(" "):
            found.append(f"```text\n{textwrap.dedent(paragraph)}\n```\n")
        else:
            found.append(" ".join(paragraph.replace("::", ":").replace("``", "`").split()) + "\n")
    return "\n".join(found)


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A table of each group of a command's arguments."""
    shown: dict[str, list[argparse.Action]] = {}
    for group in parser._action_groups:
        title = group.title or ""
        title = "" if title in ("options", "positional arguments") else title
        shown.setdefault(title, []).extend(
            each
            for each in group._group_actions
            if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)
        )
    for title, actions in shown.items():
        if title and actions:
            yield f"{title[:1].upper()}{title[1:]}:\n"
        if actions:
            yield "| argument | meaning |\n|---|---|"
            yield from (f"| {_name(each)} | {_help(parser, each)} |" for each in actions)
            yield ""


def _name(action: argparse.Action) -> str:
    """An argument's name and the form of its value."""
    value = action.metavar or action.dest.upper()
    if action.choices is not None:
        value = ",".join(map(str, action.choices))
    if isinstance(value, tuple):
        value = " ".join(value)
    if action.nargs in ("*", "+"):
        value += " ..."
    words = [value] if action.nargs != 0 else []
    name = " ".join([*action.option_strings[-1:], *words])
    if action.required and action.option_strings:
        name = f"<{name}>"
    return f"`{name}`".replace("|", "\\|")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """An argument's help with its default."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    default = action.default
    if default not in (None, False, [], ()) and "default" not in text:
        text += f" (default: {default})"
    for mark in ("|", "*", "_", "<", "["):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
