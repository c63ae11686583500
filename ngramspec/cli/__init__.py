"""The command ``ngramspec``: one module per subcommand, each named in ``COMMANDS``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from ngramspec import __version__
from ngramspec.cli.options import (
    UNPRINTABLE,
    CommandOptions,
    UsageError,
    check_given,
    printable,
)
from ngramspec.errors import INSTALL

# A new command is a module here and its name in this list. ``--help`` prints its docstring, and
# SUMMARY is its line in the list of commands. ``add_arguments(options)`` declares the options, and
# ``run(arguments)`` returns the exit code. Parsing imports all commands, so a command imports large
# modules inside ``run``.
COMMANDS = ("demo", "bench", "explain", "calibrate", "record", "replay", "corpus", "serve", "wrap")

MAX_NAME_COLUMNS = 28  # before the descriptions in a help text
INTERRUPTED = 130  # 128 + SIGINT, as in shells
CLOSED_PIPE = 1  # as rich exits, which prints some of the tables


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line without control characters."""

    def __init__(self, **settings: Any) -> None:
        side_by_side = partial(argparse.HelpFormatter, max_help_position=MAX_NAME_COLUMNS)
        super().__init__(**{"formatter_class": side_by_side, **settings})

    def error(self, message: str) -> NoReturn:
        """Print ``message`` on stderr and exit with 2."""
        self.exit(2, error_line(self.prog, message) + "\n")


def build_parser() -> Parser:
    """The parser of the whole command line; its result has ``run`` if a command was given."""
    parser = Parser(
        prog="ngramspec",
        description="Speculative decoding without a draft model: fewer target calls, and the same"
        " text in float32.",
    )
    parser.add_argument("--version", action="version", version=f"ngramspec {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"{__name__}.{name}")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.__doc__)
        command.set_defaults(run=getattr(module, "run", None), prog=command.prog)
        module.add_arguments(CommandOptions(command))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 2 for bad arguments, 130 after Ctrl-C."""
    return execute(build_parser(), argv)


@contextmanager
def quiet_on_closed_pipe() -> Iterator[None]:
    """Exit without a message if what reads the output ends before it, as in ``... | head``."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at exit
        raise SystemExit(CLOSED_PIPE) from None


@quiet_on_closed_pipe()
def execute(parser: Parser, argv: Sequence[str] | None) -> int:
    """Parse the arguments (None: the process's) and run the command that they name."""
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(given)
    arguments.command_line = f"{parser.prog} {shlex.join(given)}"
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    try:
        check_given(arguments)
        return int(arguments.run(arguments))
    except UsageError as error:
        message = str(error)
    except ModuleNotFoundError as error:
        if error.name not in INSTALL:
            raise
        message = f"{error.name} is not installed; run: {INSTALL[error.name]}"
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after the terminal's ^C
        return INTERRUPTED
    print(error_line(arguments.prog, message), file=sys.stderr)
    return 2


def error_line(prog: str, message: str) -> str:
    """An error as one line; file names in it may contain any character."""
    return f"{prog}: {printable(message)}".replace("\n", UNPRINTABLE)
