"""The ``generate`` of wrapped model folders, with one Speculator per loaded model."""

from __future__ import annotations

import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ngramspec.hf import speculate
from ngramspec.hf_model.compat.models import overridden
from ngramspec.hf_model.compat.resources import cached_file_or_none, commit_hash
from ngramspec.options import FILE, FOLDER
from ngramspec.speculator import Speculator

LOG_VARIABLE = "NGRAMSPEC_LOG"

logger = logging.getLogger("ngramspec")
_speculators: WeakKeyDictionary[Any, Speculator] = WeakKeyDictionary()
_lock = threading.Lock()
_thread = threading.local()  # its ``running``: the ids of the models that it is generating with


def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
    """``generate`` with speculation if it is supported; nested calls go to the class's own."""
    plain = partial(type(model).generate, model)
    speculator = speculator_of(model)
    if overridden(type(model), ("generate",)):
        speculator.log_once(f"{type(model).__name__} overrides generate: not speculative")
        return plain(*args, **kwargs)
    running: set[int] = vars(_thread).setdefault("running", set())
    if id(model) in running:
        return plain(*args, **kwargs)
    running.add(id(model))
    try:
        return speculate(model, plain, speculator, args, kwargs)
    finally:
        running.remove(id(model))


def speculator_of(model: Any) -> Speculator:
    """The Speculator of a model loaded from a wrapped folder, for its ``stats``.

    The first call makes it from the folder's settings, or raises a ValueError if they are invalid.
    It is kept as long as the model.
    """
    with _lock:
        if model not in _speculators:
            _log_as_asked()
            path = _settings_file(model)
            _speculators[model] = Speculator.from_pretrained(path) if path else Speculator()
        return _speculators[model]


def _settings_file(model: Any) -> Path | None:
    """The settings file next to the model's generate.py; None, and a warning, if it is missing."""
    # transformers runs a copy of generate.py in its module cache, so ``__file__`` does not help.
    folder, name = Path(model.name_or_path), f"{FOLDER}/{FILE}"
    commit = commit_hash(model.config)
    if not folder.is_dir() and commit is not None:  # the model came from a hub
        path = cached_file_or_none(model.name_or_path, name, commit)
    else:
        path = folder / name if (folder / name).is_file() else None
    if path is None:
        logger.warning("%s is not in %s: speculating with defaults", name, folder.absolute())
    return path


def _log_as_asked() -> None:
    """Show the package's log at the level in the environment variable, if only that is set."""
    level = os.environ.get(LOG_VARIABLE, "").upper()
    if not level:
        return
    levels = logging.getLevelNamesMapping()
    if level not in levels:
        raise ValueError(f"{LOG_VARIABLE} must be one of {', '.join(levels)}, got {level}")
    if logger.level == logging.NOTSET:  # else the application has set it
        logger.setLevel(levels[level])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
