"""What every store has in common, and the tokenizer that its token ids belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

Outlet = Callable[..., None]  # publishes a request's tokens, see ``RedisSync.outlet``

if TYPE_CHECKING:
    from ngramspec._native.store_reader import Familiar


class NotCopied:
    """What ``copy`` and ``deepcopy`` return unchanged, so copies of its users share it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Source(NotCopied):
    """A store, or one request's access to it.

    Attributes:
        index: its look-ups.
        rehearsed: number of last prompt tokens from which a sequence learns how often it is right.
        familiar: what earlier requests of the conversation learned about it.
    """

    index: Any  # a StoreSource
    rehearsed = 0
    familiar: Familiar | None = None

    def request(self, limit: int = 0, session: str | None = None) -> Source:
        """What a request reads: a separate object if it also adds text, else the store itself.

        Token ids that it reads are below ``limit``; 0: no bound.
        """
        return self

    def description(self) -> Any:
        """A JSON value from which ``open_stores`` makes an equal store; a ValueError: none."""
        raise ValueError(f"{self!r} cannot be kept")

    @property
    def tokenizer(self) -> str:
        """The fingerprint of its tokenizer; empty: not known."""
        return ""

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise a ValueError if its token ids are known to be another tokenizer's."""
        own = fingerprint(tokenizer) if self.tokenizer else ""
        if own != self.tokenizer:
            raise ValueError(
                f"{self!r} was built with another tokenizer: its fingerprint is {self.tokenizer},"
                f" that of the given one {own}; build it again with that one"
            )

    def check_vocabulary(self, size: int) -> None:
        """Raise a ValueError if it has token ids outside a vocabulary of ``size``."""
        largest = self.largest_id()
        if largest >= size:
            raise ValueError(
                f"{self!r} has token id {largest}, the vocabulary has {size}: it was built with"
                " another tokenizer"
            )

    def largest_id(self) -> int:
        """The largest token id, -1 if there is none or it is not known."""
        return -1


def fingerprint(tokenizer: Any) -> str:
    """The SHA-256 of a tokenizer's vocabulary, 64 hex digits, whatever the tokenizer's class."""
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
