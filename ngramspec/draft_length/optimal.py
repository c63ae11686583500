"""Closed forms: how long a draft should be (Leviathan et al. 2023, Theorem 3.8)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def worthwhile(confidences: Sequence[NDArray[np.float32]], cost: NDArray[np.float32]) -> int:
    """The length with the highest expected tokens per cost, the longest of equals.

    Theorem 3.8 with a probability for each position and a measured cost, for one chain or for the
    chains of a batch, which all run at the longest one's width.

    Args:
        confidences: of each row's chain, float32 (n,): P(accepted | those before accepted).
        cost: float32 (longest + 2,) or longer, cost[k] of a forward of k positions in every row.

    Returns:
        0..longest: where to cut the chains.

    Example:
        >>> worthwhile([np.array([0.9, 0.1], np.float32)], np.array([0, 1, 1.2, 1.4], np.float32))
        1
    """
    longest = max((len(each) for each in confidences), default=0)
    expected = np.full(longest + 1, len(confidences), np.float64)
    for each in confidences:
        gains = np.cumsum(np.cumprod(each))
        expected[1 : len(each) + 1] += gains
        expected[len(each) + 1 :] += gains[-1] if len(each) else 0.0
    return _best(expected, cost)


def worthwhile_nodes(reach: NDArray[np.float64], cost: NDArray[np.float32]) -> int:
    """How many nodes of a draft have the highest expected tokens per cost, the most of equals.

    Args:
        reach: float64 (n,), falling: P(accepted) of each node with all those above it.
        cost: float32 (n + 2,) or longer, cost[k] of a forward of k positions.
    """
    return _best(1 + np.cumsum(np.concatenate(([0.0], reach))), cost)


def _best(expected: NDArray[np.float64], cost: NDArray[np.float32]) -> int:
    value = expected / cost[1 : len(expected) + 1]
    return int(len(value) - 1 - value[::-1].argmax())
