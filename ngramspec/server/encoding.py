"""Encoding text of any size without stopping the other threads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


class TooManyTokensError(ValueError):
    """A text has more tokens than it may have.

    Args:
        count: its tokens.
    """

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} tokens")
        self.count = count


def prompt_encoder(tokenizer: Any) -> Callable[[str, bool, int | None], list[int]]:
    """What encodes a prompt. Names of special tokens are read as these tokens.

    It takes the text, whether to add the tokens that the tokenizer puts around every text, and the
    most tokens, see ``without_gil``. Threads may share it.

    Args:
        tokenizer: of the model, of transformers. It is copied, and not changed.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text, framed, most: list(
            tokenizer(text, add_special_tokens=framed)["input_ids"]
        )
    backend = untruncated(backend)
    backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    return lambda text, framed, most: without_gil(
        backend, text, add_special_tokens=framed, most=most
    )


def untruncated(backend: Any) -> Any:
    """A copy of a tokenizer of the tokenizers package that neither truncates nor pads."""
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    return backend


def without_gil(
    backend: Any, text: str, *, add_special_tokens: bool, most: int | None = None
) -> list[int]:
    """The ids that a tokenizer of the tokenizers package makes of a text.

    Of its methods only the batched ones release the GIL. The list of the ids is made with it, so
    the number of ids is checked first.

    Args:
        backend: the tokenizer.
        text: the text.
        add_special_tokens: whether to add the tokens that it puts around every text.
        most: tokens; None: no limit.

    Raises:
        TooManyTokensError: the text has more.
    """
    (found,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    if most is not None and len(found) > most:
        raise TooManyTokensError(len(found))
    return list(found.ids)


def longest_token(tokenizer: Any) -> int:
    """The most characters of a text that one token can be.

    A name in the vocabulary has at least one character for each byte or character of its token's
    text. A tokenizer that drops characters, or reads a run of unknown ones as one token, may make
    fewer tokens of a text than its length divided by this number.
    """
    return max(map(len, tokenizer.get_vocab()))
