"""Identifies the tokenizer that token ids belong to."""

from __future__ import annotations

import hashlib
from typing import Any


def fingerprint(tokenizer: Any) -> str:
    """The SHA-256 of a tokenizer's vocabulary, 64 hex digits.

    Two tokenizers have the same fingerprint if every id has the same piece in both, whatever
    their class and wherever they were loaded from. A TypeError is raised if it has no vocabulary.
    """
    digest = hashlib.sha256()
    pieces = vocabulary_of(tokenizer).items()
    for piece, number in sorted(pieces, key=lambda item: (item[1], item[0])):
        text = piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (number, len(text)) + text)
    return digest.hexdigest()


def vocabulary_size(tokenizer: Any) -> int:
    """The tokenizer's largest id plus one."""
    return max(vocabulary_of(tokenizer).values(), default=-1) + 1


def vocabulary_of(tokenizer: Any) -> dict[Any, int]:
    """A tokenizer's ids by piece; a TypeError if it has no ``get_vocab``."""
    get_vocab = getattr(tokenizer, "get_vocab", None)
    if not callable(get_vocab):
        raise TypeError(
            "tokenizer must be a transformers tokenizer or a tokenizers.Tokenizer, got"
            f" {type(tokenizer).__name__}"
        )
    return dict(get_vocab())


def encode(tokenizer: Any, text: str) -> list[int]:
    """Encode a text without adding special tokens."""
    encoder = getattr(tokenizer, "backend_tokenizer", tokenizer)  # transformers' fast tokenizers
    if hasattr(encoder, "encode_batch"):
        return list(encoder.encode(text, add_special_tokens=False).ids)
    return list(tokenizer.encode(text, add_special_tokens=False))
