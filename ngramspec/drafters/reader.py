"""What a draft model has read of a text, and its forwards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.draft import Float32, Int32
from ngramspec.drafters.base import DraftModel


class Reader:
    """A draft model, which has read nothing yet, and what it has read since.

    It returns the ``most`` most probable ids for each position. ``forwards`` counts its forwards.
    """

    def __init__(self, model: DraftModel, most: int) -> None:
        self.model, self.most = model, most
        self.forwards = 0
        self._read: list[int] = []
        self._sure = 0  # length of a common prefix of the committed text and ``_read``

    def fits(self, length: int) -> bool:
        """Whether the model can read ``length`` tokens."""
        return self.model.room is None or length <= self.model.room

    def agree(self, text: Sequence[int], committed: int) -> int:
        """Forget what differs from ``text``; return the length of what was read of it.

        At least the last token is left to read, because the distribution after it is needed.
        ``text`` has ``committed`` committed tokens, followed by draft tokens.
        """
        at, most = self._sure, min(len(self._read), len(text) - 1)
        while at < most and self._read[at] == text[at]:
            at += 1
        at = min(at, most)
        self.forget(at)
        self._sure = min(at, committed)
        return at

    def forget(self, length: int) -> None:
        """Keep the first ``length`` tokens read, or all if there are fewer."""
        del self._read[length:]
        self.model.truncate(len(self._read))

    def forward(self, tokens: Sequence[int], last: int) -> tuple[Int32, Float32]:
        """Read tokens; return the distributions after the ``last`` of them, see DraftModel."""
        self._read += tokens
        self.forwards += 1
        return self.model.forward(np.array(tokens, np.int32), last, self.most)
