"""Twin of the tokens that models find most probable: the target's last ones, and a head's."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RANKS, LATEST, MAX_IDS = 8, 4, 1 << 22
FAINT, FAINT_CHANCE = 8, 11  # the last buckets
# ln of 0.9, 0.7, 0.5, 0.3, 0.15, 0.07, 0.03 and 0.01.
BOUNDS = np.array(
    [-0.1053605, -0.3566749, -0.6931472, -1.203973, -1.897120, -2.659260, -3.506558, -4.605170],
    np.float32,
)
# ln of 0.97, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.25, 0.12, 0.05 and 0.01.
HEAD_BOUNDS = np.array(
    [
        *(-0.0304592, -0.1053605, -0.2231436, -0.3566749, -0.5108256, -0.6931472, -0.9162907),
        *(-1.386294, -2.120264, -2.995732, -4.605170),
    ],
    np.float32,
)


def bucket_of(bounds: Any, log_prob: Any) -> int:
    """The bucket of a natural logarithm of probability; NaN is the last."""
    return next((i for i, bound in enumerate(bounds) if log_prob > bound), len(bounds))


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

    def put(self, last: int, ids: Any, log_probs: Any, since: int) -> None:
        if last >= MAX_IDS:
            return
        tokens = tuple(int(each) for each in ids[:RANKS])
        buckets = tuple(bucket_of(BOUNDS, np.float32(each)) for each in log_probs[:RANKS])
        self.rows[last] = Row(tokens, buckets, since)

    def put_latest(self, last: int) -> None:
        """Note that the row just written after ``last`` is of the text itself."""
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
            chances = tuple(bucket_of(HEAD_BOUNDS, np.float32(each)) for each in probs[:RANKS])
            row = HeadRow(int(last), tuple(int(each) for each in tokens[:RANKS]), chances)
            self.rows.append(row)

    def fix(self, tokens: Any, shares: Any) -> None:
        for row, token, share in zip(self.rows, tokens, shares, strict=False):
            row.fixed, row.share = int(token), np.float32(share)
