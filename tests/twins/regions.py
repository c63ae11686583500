"""Twin of the counts of what was right in which part of a store."""

from __future__ import annotations

import numpy as np

REGION_BITS, REGIONS, FADING, FULL_LENGTH = 11, 256, 16, 4
FADE = np.float32(0.9)
MULTIPLIER = 0x9E3779B97F4A7C15


class Regions:
    """Fading counts by region, in a table of fixed size."""

    def __init__(self) -> None:
        self.of = [(0, np.float32(0))] * REGIONS  # (region, count)
        self.tokens = 0

    def copied_from(self, position: int) -> np.float32:
        """How many tokens lately came next in a position's region as in the text; they fade."""
        region, copied = self.of[self.place(position)]
        return copied if region == position >> REGION_BITS else np.float32(0)

    def count_copied(self, position: int, n: np.float32) -> None:
        """Add to the count of a position's region."""
        i = self.place(position)
        region, copied = self.of[i]
        if region == position >> REGION_BITS:
            self.of[i] = region, copied + n
        elif copied < n:
            self.of[i] = position >> REGION_BITS, n

    def fade(self, n: int) -> None:
        """Let the counts fade over ``n`` tokens."""
        self.tokens += n
        while self.tokens >= FADING:
            self.tokens -= FADING
            self.of = [(region, copied * FADE) for region, copied in self.of]

    @staticmethod
    def place(position: int) -> int:
        """The place of a position's region in the table."""
        return (((position >> REGION_BITS) * MULTIPLIER) & (2**64 - 1)) >> 56
