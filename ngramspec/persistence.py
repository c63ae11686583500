"""Persistence of a Speculator's arguments: JSON files in folders, pickles and copies."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path
from typing import Any

from ngramspec.drafters.base import Drafter

FOLDER = "custom_generate"  # transformers' name of the folder with a model's generate
SETTINGS = "ngramspec.json"


def settings_file(folder: Path) -> Path:
    """The path of a folder's settings file; in a wrapped folder it is in FOLDER."""
    wrapped = folder / FOLDER / SETTINGS
    return wrapped if wrapped.is_file() else folder / SETTINGS


def write_settings(folder: Path, arguments: dict[str, Any]) -> Path:
    """Write arguments into a folder, which is created if needed; an existing file is replaced."""
    text = json.dumps(arguments, indent=2) + "\n"
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"folder must be a folder, got the file {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    path = settings_file(folder)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return path


def read_settings(path: Path) -> dict[str, Any]:
    """The arguments in a settings file; for an invalid one, a ValueError names the problem."""
    try:
        arguments = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"{path}: must hold an object, got {type(arguments).__name__}")
    return arguments


def find_settings(place: Path) -> Path:
    """The settings file of a path: the file itself, or that of a folder."""
    path = settings_file(place) if place.is_dir() else place
    if path.is_file():
        return path
    what = f"neither {SETTINGS} nor {FOLDER}/{SETTINGS} in" if place.is_dir() else "no file or"
    raise FileNotFoundError(
        f"there is {what} folder {place}; from_pretrained reads local files only"
    )


_trial = threading.local()  # ``running``: this thread pickles an object only to test that


def check_pickles(name: str, value: Any, remedy: str) -> None:
    """Raise a TypeError with the name and the remedy if a value cannot be pickled.

    Inside another trial nothing is checked, because the value refers to the object being pickled.
    """
    if getattr(_trial, "running", False):
        return
    _trial.running = True
    try:
        pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"{name} cannot be pickled: {error}; {remedy}") from error
    finally:
        _trial.running = False


def pickled_drafter(drafter: Drafter) -> Drafter | str:
    """The drafter if it can be pickled, else its spec; without a spec raise a TypeError."""
    try:
        check_pickles(f"drafter {type(drafter).__name__}", drafter, "give it a spec")
    except TypeError:
        if drafter.spec is None or drafter.stores:
            raise
        return drafter.spec
    return drafter


def copied_drafter(drafter: Drafter, memo: dict[int, Any]) -> Drafter | str:
    """A deep copy of a drafter, else its spec; without a spec raise a TypeError."""
    try:
        return copy.deepcopy(drafter, memo)
    except Exception as error:
        if drafter.spec is None:
            name = type(drafter).__name__
            raise TypeError(f"drafter {name} cannot be copied: {error}; give it a spec") from error
        return drafter.spec
