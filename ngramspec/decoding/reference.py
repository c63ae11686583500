"""Counts of draft tokens that continue a call's reference text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import Draft, Int32
from ngramspec.stats import DecodeStats

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class ReferenceCounter:
    """Counts the draft tokens that a reference text has after the same two tokens.

    This does not depend on the drafter, nor on where else the same text occurs. Memory: 8 bytes per
    token of the reference text. Two different triples have one key with a probability of 2**-64.
    """

    def __init__(self, reference: Int32, stats: DecodeStats) -> None:
        self.length = len(reference)
        self._known = np.unique(_keys(reference[:-2], reference[1:-1], reference[2:]))
        self._stats = stats

    def count(self, last: Int32, draft: Draft, accepted: Sequence[int]) -> None:
        """Add one verified draft.

        ``last`` are the two tokens before it, int32 (2,); with fewer, nothing is counted.
        """
        n = len(draft)
        if not n or len(last) < 2 or not len(self._known):
            return
        tokens = np.concatenate((last, draft.tokens))
        before = np.arange(-1, n + 1)  # index of the token before each
        before[0] = 0
        if draft.parents is not None:
            before[2:] = draft.parents + 2
        first = before[2:]
        keys = _keys(tokens[before[first]], tokens[first], tokens[2:])
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        found = self._known[at] == keys
        self._stats.reference_drafted += int(found.sum())
        self._stats.reference_accepted += int(found[list(accepted)].sum())


def _keys(first: Int32, second: Int32, third: Int32) -> NDArray[np.uint64]:
    """A hash of each three tokens, uint64 (n,)."""
    keys = first.astype(np.uint64)
    for tokens in (second, third):
        keys = (keys ^ (keys >> np.uint64(29))) * _FACTOR + tokens.astype(np.uint64)
    return keys
