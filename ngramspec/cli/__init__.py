"""The command ``ngramspec``: one module per subcommand, each named in ``COMMANDS``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

# Each is a module of this package with SUMMARY, add_arguments(parser) and run(arguments) -> int.
# Parsing imports all of them: what is heavy is imported inside run.
COMMANDS = ("demo", "bench", "calibrate", "wrap")

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class UsageError(ValueError):
    """What the user gave cannot be used; the message is one line that says why."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` on stderr and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def build_parser() -> Parser:
    """The parser of the whole command line; its result has ``run`` if a command was given."""
    parser = Parser(
        prog="ngramspec",
        description="Speculative decoding without a draft model: the same text, fewer model calls.",
    )
    parser.add_argument("--version", action="version", version=f"ngramspec {version('ngramspec')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"ngramspec.cli.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run, prog=command.prog)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments behind the program's name; None: those of the process.

    Returns:
        The exit code: 0 for success, 2 for bad arguments, 130 after Ctrl-C, and what the
        command returns otherwise.

    Raises:
        SystemExit: from argparse, after ``--help``, ``--version`` and arguments it refuses.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    try:
        return int(arguments.run(arguments))
    except UsageError as error:
        print(f"{arguments.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)  # behind the terminal's ^C
        return INTERRUPTED
