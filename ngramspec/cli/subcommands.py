"""Subcommands from modules: the same for ``ngramspec`` and for ``ngramspec bench``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def add_subcommands(commands: Any, package: str, names: Sequence[str]) -> None:
    """Add a subcommand for each module of a package.

    A module's docstring is the description that ``--help`` prints. The module has ``SUMMARY``, its
    line in the list of commands; ``add_arguments(parser)``; and ``run(arguments)``, which returns
    the exit code. A module with subcommands of its own needs no ``run``. Parsing imports all
    modules, so they import what is large inside ``run``.

    Args:
        commands: what ``ArgumentParser.add_subparsers`` returns.
        package: the name of the package.
        names: its modules, in the order of the list.
    """
    for name in names:
        module = import_module(f"{package}.{name}")
        parser = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        parser.set_defaults(run=getattr(module, "run", None), prog=parser.prog)
        module.add_arguments(parser)
