"""Texts of requests with ids, for engines that pass lists instead of one buffer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ngramspec.draft import Int32
from ngramspec.engines.rows import Row


class EngineTexts:
    """Appends new tokens to each request's text, so that no step copies a whole text."""

    def __init__(self) -> None:
        self._texts: dict[Hashable, tuple[Int32, int]] = {}

    def known(self, key: Hashable) -> int:
        """Number of known tokens of a request."""
        return self._texts[key][1] if key in self._texts else 0

    def row(self, key: Hashable, tail: Sequence[int], total: int) -> Row:
        """The row of the request with the id ``key``, after its text has grown to ``total`` tokens.

        ``tail`` holds the last tokens of the text, at least one: those after the known ones, or
        more. If they do not continue the known text, it is replaced by them.
        """
        buffer, count = self._texts.get(key, (np.empty(0, np.int32), 0))
        new = total - count
        if not 0 <= new <= len(tail) or not _joins(buffer[:count], tail, new):
            count, new = 0, len(tail)
        end = count + new
        if end > len(buffer):
            grown = np.empty(end + max(64, end // 2), np.int32)
            grown[:count] = buffer[:count]
            buffer = grown
        added = list(tail[len(tail) - new :])
        buffer[count:end] = added
        self._texts[key] = buffer, end
        return Row(key, buffer, end, added)

    def drop(self, key: Hashable) -> None:
        """Forget a request. Unknown keys are ignored."""
        self._texts.pop(key, None)

    def clear(self) -> None:
        """Forget all requests."""
        self._texts.clear()


def _joins(text: Int32, tail: Sequence[int], new: int) -> bool:
    """Whether the tail's tokens before its last ``new`` ones equal the end of the text."""
    both = min(len(tail) - new, len(text))
    start = len(tail) - new - both
    mine: list[int] = text[len(text) - both :].tolist()
    return mine == list(tail[start : start + both])
