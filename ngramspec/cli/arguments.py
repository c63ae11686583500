"""Checks that commands share: what cannot be used becomes a UsageError of one line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ngramspec.cli import UsageError
from ngramspec.errors import check_int

if TYPE_CHECKING:
    from ngramspec.cli.models import LoadedModel


@contextmanager
def usable(name: str = "") -> Iterator[None]:
    """Raise what is wrong with what the user gave as a UsageError.

    Args:
        name: the option that is to blame, put before the reason; empty: the reason names it.
    """
    prefix = f"{name}: " if name else ""
    try:
        yield
    except UsageError:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(prefix + str(error).partition("\n")[0]) from error


def check_least(arguments: argparse.Namespace, **bounds: int) -> None:
    """Check that options are integers of at least a bound; lists of them, each one.

    Raises:
        UsageError: one is not.
    """
    for name, bound in bounds.items():
        value = getattr(arguments, name)
        for each in value if isinstance(value, list) else [value]:
            with usable():
                check_int(f"--{name.replace('_', '-')}", each, bound)


def load_on_device(arguments: argparse.Namespace) -> LoadedModel:
    """The model of ``--model`` in ``--dtype``, moved to ``--device``.

    Raises:
        UsageError: there is none, or the device cannot be used.
    """
    from ngramspec.cli.models import load

    loaded = load(arguments.model, arguments.dtype, on_stage=lambda stage: None)
    try:
        loaded.model.to(arguments.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(f"--device {arguments.device}: {reason}") from error
    return loaded
