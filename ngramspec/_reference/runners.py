"""Twin of the runners-up: what the target last found most probable behind each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

RANKS, FAINT = 8, 8
MOST_IDS = 1 << 22
# ln of 0.9, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03 and 0.01.
BOUNDS = [
    np.float32(bound)
    for bound in (
        *(-0.1053605, -0.3566749, -0.6931472, -1.203973),
        *(-1.897120, -2.659260, -3.506558, -4.605170),
    )
]


def bucket_of(log_prob: Any) -> int:
    """0..8, of a natural logarithm of probability; NaN is the last."""
    return next((i for i, bound in enumerate(BOUNDS) if log_prob > bound), FAINT)


def age_bucket(age: int) -> int:
    """Below 32 tokens, below 128, or more: 0..2."""
    return 0 if age < 32 else 1 if age < 128 else 2


@dataclass(frozen=True)
class Row:
    """Tokens, the buckets of their probabilities, and the committed tokens when it was written."""

    tokens: tuple[int, ...]
    buckets: tuple[int, ...]
    since: int


class RunnersUp:
    """Rows of the target's most probable tokens, by the token before them."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, token: int) -> tuple[list[tuple[int, int]], int] | None:
        """((token, bucket), ...) and the time of a row, or None."""
        row = self.rows.get(token)
        return None if row is None else (list(zip(row.tokens, row.buckets, strict=True)), row.since)

    def put(self, token: int, ids: Any, log_probs: Any, now: int) -> None:
        """Write the row behind a token."""
        if token < MOST_IDS:
            tokens = tuple(int(each) for each in ids[:RANKS])
            buckets = tuple(bucket_of(np.float32(each)) for each in log_probs[:RANKS])
            self.rows[token] = Row(tokens, buckets, now)
