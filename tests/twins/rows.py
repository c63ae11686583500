"""Twin of the rows of a batch: their texts, and how much of each draft is worth its cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ngramspec._native import salt
from tests.twins.common import Tokens, ints


class TokenText:
    """Committed tokens and their hash: sum of (token + 1) * r**position modulo 2**64."""

    def __init__(self) -> None:
        self._text: list[int] = []

    @property
    def count(self) -> int:
        return len(self._text)

    @property
    def hash(self) -> int:
        return text_hash(self._text, len(self._text))

    def begins(self, tokens: Tokens, length: int) -> bool:
        return self.count <= length and ints(tokens)[: self.count] == self._text

    def equals(self, tokens: Tokens, length: int) -> bool:
        return ints(tokens)[:length] == self._text

    def append(self, tokens: Tokens, length: int, vocab: int) -> npt.NDArray[np.int32]:
        """Append what is after it in tokens[:length]; return those ids that the vocabulary has."""
        new = ints(tokens)[self.count : length]
        self._text += new
        return np.array([token for token in new if 0 <= token < vocab], np.int32)

    def copy(self) -> npt.NDArray[np.int32]:
        return np.array(self._text, np.int32)


def text_hash(tokens: Tokens, length: int) -> int:
    ratio, total = salt() | 1, 0
    for at, token in enumerate(ints(tokens)[:length]):
        total += (token % 2**32 + 1) * pow(ratio, at, 2**64)
    return total % 2**64


def best_prefix_lengths(
    confidences: Sequence[npt.NDArray[np.float32]],
    curve: npt.NDArray[np.float32],
    chains: bool = True,
    lasting: float = 1.0,
    weights: Sequence[float] | None = None,
    rate: float = float("nan"),
) -> list[int]:
    """How long the heads of a batch's drafts are where its expected tokens are worth most."""
    rows = len(confidences)
    if not rows:
        return []
    exact = [each.astype(np.float64) * (lasting if chains else 1.0) for each in confidences]
    reach = np.concatenate([np.cumprod(each) if chains else each for each in exact])
    row = np.repeat(np.arange(rows), [len(each) for each in confidences])
    if weights is not None:
        reach *= np.array(weights, np.float64)[row]
    order = np.argsort(-reach, kind="stable")[: len(curve) - 1]
    expected = np.cumsum(np.concatenate(([rows], reach[order])))
    cost = curve[: len(expected)].astype(np.float64)
    value = expected / cost if np.isnan(rate) else expected - rate * rows * cost
    best = len(value) - 1 - int(value[::-1].argmax())
    lengths: list[int] = np.bincount(row[order[:best]], minlength=rows).tolist()
    return lengths


def may_pay(curve: npt.NDArray[np.float32], rows: int, k: int, rate: float = 1.0) -> bool:
    drafted = np.arange(min(len(curve), rows * k + 1))
    more = curve[: len(drafted)].astype(np.float64) - 1.0
    return bool((drafted > rate * rows * more)[1:].any())


def generous_cost(curve: npt.NDArray[np.float32], rows: int, k: int) -> npt.NDArray[np.float32]:
    """A row's cost by which sessions end what pays in no batch: a quarter of a token's least."""
    extra = np.arange(1, len(curve))
    slope = float(((curve[1:] - curve[0]) / extra).min(initial=np.inf)) if len(extra) else 0.0
    cost = np.ones(k + 2, np.float32)
    cost[2:] += 0.25 * rows * max(slope, 0.0) * np.arange(1, k + 1, dtype=np.float32)
    return cost
