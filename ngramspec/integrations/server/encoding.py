"""Encoding text of any size without stopping the other threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def prompt_encoder(tokenizer: Any) -> Callable[[str, bool], list[int]]:
    """What encodes a prompt, with or without the tokens that the tokenizer puts around every text.

    Names of special tokens are read as these tokens. Threads may share it.

    Args:
        tokenizer: of the model, of transformers. It is copied, and not changed.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text, framed: list(tokenizer(text, add_special_tokens=framed)["input_ids"])
    backend = untruncated(backend)
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return lambda text, framed: without_gil(backend, text, add_special_tokens=framed)


def untruncated(backend: Any) -> Any:
    """A copy of a tokenizer of the tokenizers package that neither truncates nor pads."""
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    return backend


def without_gil(backend: Any, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids that a tokenizer of the tokenizers package makes of a text.

    Of its methods only the batched ones release the GIL.
    """
    (found,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(found.ids)


def longest_token(tokenizer: Any) -> int:
    """The most characters of a text that one token can be.

    A name in the vocabulary has at least one character for each byte or character of its token's
    text. A tokenizer that drops characters, or reads a run of unknown ones as one token, makes fewer
    tokens of a text than its length divided by this number.
    """
    return max(map(len, tokenizer.get_vocab()))
