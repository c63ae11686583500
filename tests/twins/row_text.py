"""Twin of the tokens of an engine's row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ngramspec._native.common import salt
from tests.twins.common import Tokens, ints


class TokenText:
    """Committed tokens and their hash: sum of (token + 1) * r**position modulo 2**64."""

    def __init__(self) -> None:
        self._text: list[int] = []

    @property
    def count(self) -> int:
        return len(self._text)

    @property
    def hash(self) -> int:
        return text_hash(self._text, len(self._text))

    def begins(self, tokens: Tokens, length: int) -> bool:
        """Whether tokens[:length] begins with this text."""
        return self.count <= length and ints(tokens)[: self.count] == self._text

    def equals(self, tokens: Tokens, length: int) -> bool:
        """Whether this is exactly tokens[:length]."""
        return ints(tokens)[:length] == self._text

    def append(self, tokens: Tokens, length: int, vocab: int) -> npt.NDArray[np.int32]:
        """Append what is behind it in tokens[:length]; return those ids that the vocabulary has."""
        new = ints(tokens)[self.count : length]
        self._text += new
        return np.array([token for token in new if 0 <= token < vocab], np.int32)

    def copy(self) -> npt.NDArray[np.int32]:
        return np.array(self._text, np.int32)


def text_hash(tokens: Tokens, length: int) -> int:
    """The hash that a text of the first ``length`` tokens has."""
    ratio, total = salt() | 1, 0
    for at, token in enumerate(ints(tokens)[:length]):
        total += (token % 2**32 + 1) * pow(ratio, at, 2**64)
    return total % 2**64
