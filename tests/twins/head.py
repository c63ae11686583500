"""Twin of the rows of a drafting head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.twins.top_tokens import RANKS

FAINT_CHANCE = 11
# ln of 0.97, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.25, 0.12, 0.05 and 0.01.
BOUNDS = [
    np.float32(bound)
    for bound in (
        *(-0.0304592, -0.1053605, -0.2231436, -0.3566749, -0.5108256, -0.6931472, -0.9162907),
        *(-1.386294, -2.120264, -2.995732, -4.605170),
    )
]


def chance_of(log_prob: Any) -> int:
    """0..11, of a natural logarithm of probability; NaN is the last."""
    return next((i for i, bound in enumerate(BOUNDS) if log_prob > bound), FAINT_CHANCE)


@dataclass
class HeadRow:
    """A head's tokens, the most probable first, and the buckets of their probabilities."""

    before: int
    tokens: tuple[int, ...]
    chances: tuple[int, ...]
    fixed: int | None = None
    share: Any = None


class HeadRows:
    """The rows along the head's path of one draft."""

    def __init__(self) -> None:
        self.rows: list[HeadRow] = []

    @property
    def fixed(self) -> int:
        """The number of rows with a fixed token, which are the first."""
        return sum(row.fixed is not None for row in self.rows)

    def at(self, path: Sequence[int]) -> HeadRow | None:
        """The row after a path, if the path is the head's."""
        if len(path) >= len(self.rows):
            return None
        own = [row.before for row in self.rows[1 : len(path) + 1]]
        return self.rows[len(path)] if own == list(path) else None

    def read(self, before: Any, ids: Any, log_probs: Any, depth: int) -> None:
        """Add rows in place of those from ``depth`` on."""
        del self.rows[depth:]
        for last, tokens, probs in zip(before, ids, log_probs, strict=True):
            chances = tuple(chance_of(np.float32(each)) for each in probs[:RANKS])
            row = HeadRow(int(last), tuple(int(each) for each in tokens[:RANKS]), chances)
            self.rows.append(row)

    def fix(self, tokens: Any, shares: Any) -> None:
        """Fix the tokens at the first rows."""
        for row, token, share in zip(self.rows, tokens, shares, strict=False):
            row.fixed, row.share = int(token), np.float32(share)
