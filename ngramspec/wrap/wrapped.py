"""Model folders whose ``generate`` speculates: writing one, and its ``generate``.

``wrap`` writes a folder for ``from_pretrained`` and servers. Each loaded model has one Speculator.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.hf import speculate
from ngramspec.hf_model.compat.factories import model_class
from ngramspec.hf_model.compat.models import overridden
from ngramspec.hf_model.compat.resources import cached_file_or_none, commit_hash
from ngramspec.hf_model.facts import check_model
from ngramspec.options import FILE, FOLDER
from ngramspec.speculator import Speculator

GGUF = ".gguf"
WEIGHT_SUFFIXES = (".safetensors", ".bin", GGUF, ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ckpt")
SKIPPED_FOLDERS = (".git", ".cache", "__pycache__")
HARD, SYMBOLIC, COPIED = "hard links", "symbolic links", "copies"
LOG_VARIABLE = "NGRAMSPEC_LOG"

logger = logging.getLogger("ngramspec")
_speculators: WeakKeyDictionary[Any, Speculator] = WeakKeyDictionary()
_lock = threading.Lock()
_thread = threading.local()  # its ``running``: the ids of the models that it is generating with

GENERATE = f'''"""Speculative ``generate`` for the model of this folder, by the package ngramspec.

``ngramspec wrap`` wrote this file. {FILE} in this folder holds the Speculator's arguments.
"""

from ngramspec.wrap import wrapped


def generate(*args, model, **kwargs):
    """The model's own ``generate``: the same arguments and result, in fewer target calls."""
    return wrapped.generate(model, *args, **kwargs)
'''


@dataclass(frozen=True, slots=True)
class Wrapped:
    """Summary of a written folder."""

    folder: Path
    model: str  # name of the class in the model's config
    encodes: bool  # whether it is an encoder-decoder model
    settings: dict[str, Any]  # stored arguments of the Speculator
    weights: Counter[str]  # the number of files with weights, by HARD, SYMBOLIC or COPIED


def wrap(
    model_dir: Path, out_dir: Path, settings: dict[str, Any], *, copy: bool = False
) -> Wrapped:
    """Write a folder with the model of ``model_dir`` and a ``generate`` that speculates.

    Weights are hard links, which need no space and stay valid if ``model_dir`` is deleted. If hard
    links are impossible, for example between two disks, they are symbolic links. Everything else is
    copied; with ``copy``, the weights, too. ``model_dir`` is never written to. After an error no
    new file is left. ``settings`` are arguments of a Speculator.

    ``out_dir`` must be new or empty. A ValueError, or an UnsupportedError about the model's class,
    says what is wrong.
    """
    Speculator(**settings)
    sources = dict(_files(model_dir))
    config = _check_model_dir(model_dir, sources)
    _check_out_dir(model_dir, out_dir)
    weights: Counter[str] = Counter()
    texts = {
        "generate.py": GENERATE,
        "requirements.txt": f"ngramspec>={__version__}\n",
        FILE: json.dumps(settings, indent=2) + "\n",
    }
    new = [each for each in (out_dir, *out_dir.parents) if not each.exists()]
    try:
        for name, source in sources.items():
            (out_dir / name).parent.mkdir(parents=True, exist_ok=True)
            how = _place(source, out_dir / name, link=not copy)
            weights.update([how] if name.endswith(WEIGHT_SUFFIXES) else ())
        (out_dir / FOLDER).mkdir()
        for name, text in texts.items():
            (out_dir / FOLDER / name).write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(new[-1] if new else out_dir, ignore_errors=True)
        if not new:
            out_dir.mkdir(exist_ok=True)
        raise
    kinds = config.get("architectures") or ["model"]
    return Wrapped(out_dir, kinds[0], bool(config.get("is_encoder_decoder")), settings, weights)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a model folder by relative name, without files of an earlier wrap."""
    if not folder.is_dir():
        raise ValueError(f"MODEL_DIR: there is no folder {folder}")
    for place, folders, names in os.walk(folder, followlinks=True):
        at = Path(place)
        skipped = (*SKIPPED_FOLDERS, FOLDER) if at == folder else SKIPPED_FOLDERS
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in sorted(names):
            if not (at / name).is_file():
                raise ValueError(f"MODEL_DIR: {at / name} is a broken link")
            if at != folder or name != FILE:
                yield (at / name).relative_to(folder).as_posix(), at / name


def _check_model_dir(folder: Path, sources: dict[str, Path]) -> dict[str, Any]:
    """Return the model's config. Raise an error if the folder cannot be wrapped."""
    if "adapter_config.json" in sources:
        raise ValueError(
            f"MODEL_DIR: {folder} holds an adapter; merge it and save the model, or wrap the"
            " model it adapts"
        )
    weights = [name for name in sources if name.endswith(WEIGHT_SUFFIXES)]
    if weights and all(name.endswith(GGUF) for name in weights):
        raise ValueError(
            f"MODEL_DIR: {folder} holds only GGUF files, with which transformers ignores"
            f" {FOLDER}; save the model as safetensors, or use ngramspec.enable(model)"
        )
    if not weights:
        raise ValueError(f"MODEL_DIR: {folder} holds no weights, such as model.safetensors")
    own = folder / FOLDER
    if own.exists() and not (own / FILE).is_file():
        raise ValueError(f"MODEL_DIR: {folder} has its own {FOLDER}, which would be lost")
    if "config.json" not in sources:
        raise ValueError(f"MODEL_DIR: {folder} holds no config.json")
    path = sources["config.json"]
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"MODEL_DIR: {path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"MODEL_DIR: {path} must hold an object, got {type(config).__name__}")
    for name in config.get("architectures") or ():
        _check_kind(name)
    return config


def _check_kind(name: str) -> None:
    """Raise an UnsupportedError if a class of transformers does not support speculation."""
    kind = model_class(name)
    if kind is None:  # defined in the model's folder
        return
    if not hasattr(kind, "generate"):
        raise UnsupportedError(f"MODEL_DIR: {name} cannot generate text")
    if overridden(kind, ("generate",)):
        raise UnsupportedError(f"MODEL_DIR: {name} overrides generate")
    try:
        check_model(kind.__new__(kind), {})
    except UnsupportedError as error:
        raise UnsupportedError(f"MODEL_DIR: {error}") from error


def _check_out_dir(model_dir: Path, out_dir: Path) -> None:
    model, out = model_dir.resolve(), out_dir.resolve()
    if model == out or model in out.parents or out in model.parents:
        raise ValueError(f"OUT_DIR: {out_dir} must be neither inside MODEL_DIR nor a parent of it")
    if out_dir.exists() and not out_dir.is_dir():
        raise ValueError(f"OUT_DIR: {out_dir} is a file")
    if out_dir.is_dir() and any(out_dir.iterdir()):
        raise ValueError(f"OUT_DIR: {out_dir} is not empty")


def _place(source: Path, target: Path, *, link: bool) -> str:
    """Link a file with weights, or copy a file of the model; return how."""
    if not link or not source.name.endswith(WEIGHT_SUFFIXES):
        shutil.copyfile(source, target)
        return COPIED
    try:
        target.hardlink_to(source.resolve())
    except OSError:  # another disk, or a file system or an owner that does not allow it
        target.symlink_to(source.resolve())
        return SYMBOLIC
    return HARD


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
