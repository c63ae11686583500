"""Encoding text of any size without blocking other threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

PIECE_CHARACTERS = 1 << 15  # of a text in one operation that holds the GIL; not tuned


def pieces(text: str) -> Iterator[str]:
    """A text in pieces, for operations that hold the GIL."""
    return (text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS))


class TooManyTokensError(ValueError):
    """A text has more tokens than allowed; ``count`` is their number."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} tokens")
        self.count = count


def prompt_encoder(tokenizer: Any) -> Callable[[str, bool, int | None], list[int]]:
    """A function that encodes a prompt, in which names of special tokens become these tokens.

    Its arguments are the text, whether to add the tokens that the tokenizer adds to every text, and
    the maximum number of tokens (see ``without_gil``). It is thread-safe. The tokenizer is copied.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend = untruncated(backend)
        backend.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))

    def encode(text: str, framed: bool, most: int | None) -> list[int]:
        if backend is None:
            return list(tokenizer(text, add_special_tokens=framed)["input_ids"])
        return without_gil(backend, text, add_special_tokens=framed, most=most)

    return encode


def untruncated(backend: Any) -> Any:
    """A copy of a tokenizer of the tokenizers package that neither truncates nor pads."""
    backend = copy.deepcopy(backend)
    backend.no_truncation()
    backend.no_padding()
    return backend


def without_gil(
    backend: Any, text: str, *, add_special_tokens: bool, most: int | None
) -> list[int]:
    """Encode a text with a tokenizer of the tokenizers package, without holding the GIL.

    Only its batched methods release the GIL. Building the list of ids holds the GIL, so the number
    of ids is checked first: a TooManyTokensError is raised if it exceeds ``most``.
    """
    (found,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    if most is not None and len(found) > most:
        raise TooManyTokensError(len(found))
    return list(found.ids)


def longest_token(tokenizer: Any) -> int:
    """An upper bound on the characters of text that one token represents.

    A vocabulary entry has at least one character for each byte or character of its token's text.
    The bound does not hold for a tokenizer that drops characters or encodes a run of unknown
    characters as one token.
    """
    return max(map(len, tokenizer.get_vocab()))
