"""Public names of a package that are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ngramspec.errors import INSTALL


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Make a package's ``__getattr__``, by the names of each module (relative to the package)."""
    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(f"{package}.{modules[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name not in INSTALL:
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs {error.name}: {INSTALL[error.name]}", name=error.name
            ) from error
        setattr(sys.modules[package], name, value)
        return value

    return load
