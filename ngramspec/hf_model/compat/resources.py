"""What surrounds transformers' models: logs, files and tokenizers."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any, NamedTuple

import torch


def commit_hash(config: Any) -> str | None:
    """Return the commit of the hub repository that a model's config was loaded from, or None."""
    found: str | None = getattr(config, "_commit_hash", None)
    return found


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


def silence() -> None:
    """Have transformers log errors only, and show no progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def new_progress_bar(total: int | None, unit: str) -> Any:
    """A tqdm bar, unless transformers' progress bars are disabled."""
    from transformers.utils.logging import tqdm

    return tqdm(total=total, unit=unit)


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


PADDING_METHOD = "warn_if_padding_and_no_attention_mask"  # that some forwards call


class PaddingNotice(NamedTuple):
    """A module whose forwards warn of its padding token, if they find it and have no mask."""

    module: Any
    token: int

    def give(self) -> None:
        """Log the warning, which transformers does once."""
        self.module.warn_if_padding_and_no_attention_mask(
            torch.tensor([[self.token]], device="cpu"), None
        )


def find_padding_notice(model: Any) -> PaddingNotice | None:
    """Return the notice that a model's forwards over text may give; None: they give none."""
    found: dict[Any, Any] = {type(each): each for each in model.get_decoder().modules()}
    for kind, module in found.items():
        code = getattr(inspect.unwrap(kind.forward), "__code__", None)
        if code is not None and PADDING_METHOD in code.co_names:
            token = module.config.pad_token_id
            return None if token is None else PaddingNotice(module, int(token))
    return None


class _Memory(threading.local):
    """A logger to transformers' ``warning_once``, which calls it for what it does not remember."""

    new = False

    def warning(self, _: object) -> None:
        self.new = True


_memory = _Memory()


def is_first_notice(about: object) -> bool:
    """Whether this was not asked since transformers began, or forgot, what it logs only once."""
    from transformers.utils.logging import warning_once

    _memory.new = False
    warning_once(_memory, about)
    return _memory.new
