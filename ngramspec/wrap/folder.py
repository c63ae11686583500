"""Writes a model folder whose ``generate`` speculates, for ``from_pretrained`` and servers."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngramspec import __version__
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.extras import model_class
from ngramspec.hf_model.compat.names import overridden
from ngramspec.hf_model.facts import check_model
from ngramspec.options import FILE, FOLDER
from ngramspec.speculator import Speculator

GGUF = ".gguf"
WEIGHT_SUFFIXES = (".safetensors", ".bin", GGUF, ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ckpt")
INDEX_SUFFIX = ".index.json"  # files that map weights to shards
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


@dataclass(slots=True)
class Group:
    """Number and bytes of files that were linked or copied by one method."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wrapped:
    """Summary of a written folder."""

    folder: Path
    model: str  # name of the class in the model's config
    encodes: bool  # whether it is an encoder-decoder model
    settings: dict[str, Any]  # stored arguments of the Speculator
    weights: dict[str, Group] = field(default_factory=dict)  # by HARD, SYMBOLIC or COPIED
    others: Group = field(default_factory=Group)  # the other files, which are always copied


def wrap(
    model_dir: Path,
    out_dir: Path,
    settings: dict[str, Any],
    *,
    copy: bool = False,
    force: bool = False,
) -> Wrapped:
    """Write a folder with the model of ``model_dir`` and a ``generate`` that speculates.

    Weights are hard links, which need no space and stay valid if ``model_dir`` is deleted. If hard
    links are impossible, for example between two disks, they are symbolic links. Everything else is
    copied; with ``copy``, the weights, too. ``model_dir`` is never written to. After an error no
    new file is left. ``settings`` are arguments of a Speculator.

    With ``force``, ``out_dir`` may have files; those of the same names are replaced, others are
    kept. A ValueError, or an UnsupportedError about the model's class, says what is wrong.
    """
    Speculator(**settings)
    sources = dict(_files(model_dir))
    config = _check_model_dir(model_dir, sources)
    _check_out_dir(model_dir, out_dir, sources, force=force)
    kinds = config.get("architectures") or ["model"]
    done = Wrapped(out_dir, kinds[0], bool(config.get("is_encoder_decoder")), settings)
    texts = {
        "generate.py": GENERATE,
        "requirements.txt": f"ngramspec>={__version__}\n",
        FILE: json.dumps(settings, indent=2) + "\n",
    }
    with ExitStack() as undo:
        for name, source in sources.items():
            _place(source, _cleared(out_dir / name, undo), done, link=not copy)
        for name, text in texts.items():
            _cleared(out_dir / FOLDER / name, undo).write_text(text, encoding="utf-8")
        undo.pop_all()  # no error: keep everything
    return done


def _cleared(path: Path, undo: ExitStack) -> Path:
    """A path to write to. A link there is removed, so that its target is not overwritten."""
    for folder in reversed([each for each in path.parents if not each.exists()]):
        folder.mkdir(exist_ok=True)
        undo.callback(_remove, folder)
    path.unlink(missing_ok=True)
    undo.callback(_remove, path)
    return path


def _remove(path: Path) -> None:
    with suppress(OSError):  # report the first error
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


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


def _check_out_dir(
    model_dir: Path, out_dir: Path, sources: dict[str, Path], *, force: bool
) -> None:
    model, out = model_dir.resolve(), out_dir.resolve()
    if model == out or model in out.parents or out in model.parents:
        raise ValueError(f"OUT_DIR: {out_dir} must be neither inside MODEL_DIR nor a parent of it")
    if out_dir.exists() and not out_dir.is_dir():
        raise ValueError(f"OUT_DIR: {out_dir} is a file")
    if not out_dir.is_dir() or not any(out_dir.iterdir()):
        return
    if not force:
        raise ValueError(f"OUT_DIR: {out_dir} is not empty; give --force to write into it")
    for place, folders, _ in os.walk(out_dir):
        for path in (Path(place, name) for name in folders):
            if path.is_symlink():  # writing through it would change another folder
                raise ValueError(f"OUT_DIR: {path} is a link to a folder; remove it")
    for path in sorted(out_dir.iterdir()):
        if path.name.endswith((*WEIGHT_SUFFIXES, INDEX_SUFFIX)) and path.name not in sources:
            raise ValueError(
                f"OUT_DIR: {path} is not in MODEL_DIR and might be loaded instead of its files;"
                " remove it"
            )


def _place(source: Path, target: Path, done: Wrapped, *, link: bool) -> None:
    """Link or copy one file of the model, and count it."""
    is_weights, how = source.name.endswith(WEIGHT_SUFFIXES), COPIED
    if is_weights and link:
        try:
            target.hardlink_to(source.resolve())
            how = HARD
        except OSError:  # another disk, or a file system or an owner that does not allow it
            target.symlink_to(source.resolve())
            how = SYMBOLIC
    else:
        shutil.copyfile(source, target)
    group = done.weights.setdefault(how, Group()) if is_weights else done.others
    group.files += 1
    group.bytes += source.stat().st_size
