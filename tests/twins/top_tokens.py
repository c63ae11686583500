"""Twin of the top-k candidates: what the target last found most probable after its last tokens."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RANKS, FAINT = 8, 8
LATEST = 4
MAX_IDS = 1 << 22
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
    """Tokens, the buckets of their probabilities, and the position that it is about.

    Of a drafted token that is where the draft began.
    """

    tokens: tuple[int, ...]
    buckets: tuple[int, ...]
    since: int


@dataclass(frozen=True)
class Unemitted:
    """A token that the target found possible ``back`` positions before the text's last one."""

    token: int
    back: int
    bucket: int
    recent: bool


class TopTokens:
    """Rows of the target's most probable tokens, by the tokens before them."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.latest: dict[int, Row] = {}  # by position, modulo LATEST

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, token: int) -> tuple[list[tuple[int, int]], int] | None:
        """((token, bucket), ...) and the time of a row, or None."""
        return described(self.rows.get(token))

    def put(self, last: int, ids: Any, log_probs: Any, since: int) -> None:
        """Write the row behind ``last``."""
        if last >= MAX_IDS:
            return
        tokens = tuple(int(each) for each in ids[:RANKS])
        buckets = tuple(bucket_of(np.float32(each)) for each in log_probs[:RANKS])
        self.rows[last] = Row(tokens, buckets, since)

    def put_latest(self, last: int) -> None:
        """Note that the row just written behind ``last`` is of the text itself."""
        if last in self.rows:
            self.latest[self.rows[last].since % LATEST] = self.rows[last]

    def unemitted(self, text: Sequence[int], recent: Container[int]) -> list[Unemitted]:
        """The tokens that the target found possible at the last positions, and did not say."""
        found: dict[int, Unemitted] = {}
        for back in range(min(LATEST, len(text))):
            at = len(text) - 1 - back
            row = self.latest.get(at % LATEST)
            if row is None or row.since != at:
                continue
            for token, bucket in zip(row.tokens, row.buckets, strict=True):
                if token != text[at] and token not in found:
                    found[token] = Unemitted(token, back, bucket, token in recent)
        return list(found.values())


def described(row: Row | None) -> tuple[list[tuple[int, int]], int] | None:
    """((token, bucket), ...) and the time of a row; None of none."""
    return None if row is None else (list(zip(row.tokens, row.buckets, strict=True)), row.since)
