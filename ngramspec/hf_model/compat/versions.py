"""The installed transformers: changes between versions, and its functions for files and logs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version


@dataclass(frozen=True, slots=True)
class Change:
    """A change of behaviour in transformers, and the first version with it."""

    version: str
    what: str


NEWEST_TESTED = "5.24.0"

MARKS_CACHES = Change("5.19", "generate marks every cache that a caller passed")
PLACES_TOKENS = Change("5.19", "GIT places a single token where it places one of several")
KEEPS_SELECTION = Change("5.17", "a mask of bools keeps the selection of an index under sdpa")


def before(version: str) -> bool:
    """Whether the installed transformers is older than a version; pre-releases of it are older."""
    from transformers import __version__

    return Version(__version__) < Version(version)


def has(change: Change) -> bool:
    """Whether the installed transformers has a change of behaviour."""
    return not before(change.version)


def untested() -> str | None:
    """Return the version of the installed transformers if it is newer than NEWEST_TESTED."""
    from transformers import __version__

    return __version__ if _newer(__version__) else None


@functools.cache
def _newer(version: str) -> bool:
    return Version(version) > Version(NEWEST_TESTED)


def small_model(vocab: int) -> Any:
    """Return a random Llama in float32 on the CPU, to check an untested version with.

    It uses the CPU's random generator.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.default_generator.manual_seed(0)  # not those of other devices
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("cpu"):
        return LlamaForCausalLM(config).eval().float()


# Files, tokenizers and logs


def cached_file_or_none(repository: str, name: str, revision: str) -> Path | None:
    """Return a file of a hub repository, cached or downloaded; None: it does not exist."""
    from transformers.utils import cached_file

    found = cached_file(
        repository,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def is_slow(tokenizer: Any) -> bool:
    """Whether a tokenizer is written in Python."""
    from transformers import PreTrainedTokenizer

    return isinstance(tokenizer, PreTrainedTokenizer)


def byte_letters() -> dict[int, str]:
    """Return the letter that represents each byte in a vocabulary of bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters: dict[int, str] = bytes_to_unicode()
    return letters


def response_template(model: Any, tokenizer: Any) -> dict[str, Any] | None:
    """Return the response template that ``transformers serve`` uses for a model, if it has one."""
    try:
        from transformers.cli.serving.utils import get_response_template
    except ImportError:  # older versions of transformers
        return None
    template: dict[str, Any] | None = get_response_template(tokenizer, model)
    return template


def silence() -> None:
    """Have transformers log errors only, and show no progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
