"""The corpus's look-ups, plainly: every place in the documents, sorted by what stands before it.

The oracle of the native ones. It keeps each place's context as a list, which takes memory by the
square of a document's length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

DEEPEST = 64
WIDE = 128
LEADING = 8
BORDER = 0x7FFFFFFF  # sorts behind every token


class CorpusIndex:
    """All places of some documents where something stands before and something follows.

    Args:
        documents: token ids.
    """

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        places = [
            ([*reversed(document[:i]), BORDER], document[i], document[i:])
            for document in documents
            for i in range(1, len(document))
        ]
        self.places = sorted(places, key=lambda place: place[0][:DEEPEST])
        self.keys = [key[:DEEPEST] for key, _, _ in self.places]
        self.limit = max((max(each) for each in documents if each), default=-1) + 1

    def __len__(self) -> int:
        return len(self.places)

    def interval(self, context: Sequence[int]) -> tuple[int, int]:
        """The places behind a whole context of at most 64 tokens."""
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

    def continuations(
        self, context: Sequence[int], most: int = LEADING
    ) -> tuple[list[tuple[int, int]], int]:
        """What follows the longest match, by count, of equals the lower id first; its length."""
        length, first, end = self.longest(context)
        counts = Counter(token for _, token, _ in self.places[first:end])
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return (ranked[:most] if length else []), length

    def following(self, place: int, most: int) -> list[int]:
        """What follows a place, up to the document's end."""
        return list(self.places[place][2][:most])
