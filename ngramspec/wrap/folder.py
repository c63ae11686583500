"""Writes a model folder whose ``generate`` speculates, for ``from_pretrained`` and servers."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.factories import model_class
from ngramspec.hf_model.compat.models import overridden
from ngramspec.hf_model.facts import check_model
from ngramspec.options import FILE, FOLDER
from ngramspec.speculator import Speculator

GGUF = ".gguf"
WEIGHT_SUFFIXES = (".safetensors", ".bin", GGUF, ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ckpt")
SKIPPED_FOLDERS = (".git", ".cache", "__pycache__")
HARD, SYMBOLIC, COPIED = "hard links", "symbolic links", "copies"
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
            f" {FOLDER}; save the model as safetensors, or use ngramspec.enabled(model)"
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
