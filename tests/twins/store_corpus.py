"""The corpus's look-ups, plainly: every place in the documents, sorted by what stands before it.

The oracle of the native ones. Sorting takes time and memory by the square of the text's length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

DEEPEST = 64
BACKOFFS = 3
BORDER = 0x7FFFFFFF  # sorts after every token


class CorpusIndex:
    """All places of some documents where something stands before and something follows.

    Args:
        documents: token ids.
    """

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        self.text = [BORDER]
        for document in documents:
            if len(document):
                self.text += [*document, BORDER]
        inside = (
            q
            for q in range(1, len(self.text))
            if self.text[q] != BORDER and self.text[q - 1] != BORDER
        )
        self.places = sorted(inside, key=lambda q: self.text[q - 1 :: -1])
        self.keys = [self.before(q) for q in self.places]
        self.limit = max((token for token in self.text if token != BORDER), default=-1) + 1

    def before(self, q: int) -> list[int]:
        """The last 64 tokens before a place, read backwards, up to a border."""
        key = self.text[q - 1 :: -1][:DEEPEST]
        return key[: key.index(BORDER) + 1] if BORDER in key else key

    def __len__(self) -> int:
        return len(self.places)

    def interval(self, context: Sequence[int]) -> tuple[int, int]:
        """The places after a whole context of at most 64 tokens."""
        wanted = list(reversed(context))
        cut = [key[: len(wanted)] for key in self.keys]
        first, end = bisect_left(cut, wanted), bisect_right(cut, wanted)
        return (first, end) if first < end else (0, 0)

    def longest(self, context: Sequence[int]) -> tuple[int, int, int]:
        """The longest match of a context's end: (length, first, end)."""
        found = (0, 0, 0)
        for length in range(1, min(len(context), DEEPEST) + 1):
            first, end = self.interval(context[-length:])
            if first == end:
                break
            found = (length, first, end)
        return found

    def following(self, at: int, most: int) -> list[int]:
        """What follows a position, up to the document's end."""
        after = self.text[at:][:most]
        return after[: after.index(BORDER)] if BORDER in after else after

    def earlier(self, at: int) -> bool:
        return False

    def token(self, at: int) -> int | None:
        return None if self.text[at] == BORDER else self.text[at]

    def look(self, context: Sequence[int], most: int) -> list[tuple[int, int, int]]:
        """Places of the longest match, evenly spread; then of the two next shorter ones."""
        length, first, end = self.longest(context)
        inner = range(0)
        found: list[tuple[int, int, int]] = []
        for _ in range(BACKOFFS):
            if length == 0 or len(found) == most:
                break
            places = [i for i in range(first, end) if i not in inner]
            n = min(most - len(found), len(places))
            found += [(self.places[places[k * len(places) // n]], length, 0) for k in range(n)]
            inner = range(first, end)
            while length and len(range(first, end)) == len(inner):
                length -= 1
                first, end = self.interval(context[-length:]) if length else (0, 0)
        return found
