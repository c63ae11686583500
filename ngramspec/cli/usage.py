"""One-line errors about the user's arguments, and checks that raise them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ngramspec.errors import INSTALL, check_int
from ngramspec.measure.models import INSTALL_DEMO

OPTIONAL = {"matplotlib": "pip install matplotlib", "rich": INSTALL_DEMO}


class UsageError(ValueError):
    """An argument of the user cannot be used. The message is one line."""


@contextmanager
def usable(name: str = "") -> Iterator[None]:
    """Convert errors about the user's arguments to a UsageError that begins with the option's name.

    An empty name: the reason names it. A missing package of ``INSTALL`` is reported by ``execute``.
    """
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


def check_folders(arguments: argparse.Namespace) -> None:
    """Check, before anything is measured, that the folders of output files exist."""
    for name in ("json", "html"):
        path: Path | None = getattr(arguments, name, None)
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"--{name}: cannot write {path}: there is no folder {path.parent}")


@contextmanager
def writable(option: str, path: Path) -> Iterator[None]:
    """Raise a UsageError if writing to the path of an option fails."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{option}: cannot write {path}: {error.strerror}") from error


def check_least(arguments: argparse.Namespace, **bounds: int) -> None:
    """Check that options, or all entries of lists, are integers >= a bound."""
    for name, bound in bounds.items():
        value = getattr(arguments, name)
        for each in value if isinstance(value, list) else [value]:
            with usable():
                check_int(f"--{name.replace('_', '-')}", each, bound)


def need_plots(folder: Path | None) -> None:
    """Raise a UsageError for ``--plots`` without matplotlib, before measuring."""
    if folder is not None:
        need("matplotlib", "--plots needs")


def need(package: str, what: str) -> None:
    """Raise a UsageError that begins with ``what`` if a package of OPTIONAL is not installed."""
    if find_spec(package) is None:
        raise UsageError(f"{what} {package}; run: {OPTIONAL[package]}")
