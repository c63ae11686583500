"""How much of a batch's drafts is worth a step's cost.

Two kinds of steps. In an engine each token costs a position of its own, whichever row it is of:
the likeliest of all rows go first (``worthwhile_rows``). In a forward over a rectangle all rows are
as wide as the widest: only the width is chosen (``common_length``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.batch_choice import generous_cost, may_pay, worthwhile_heads
from ngramspec.draft import Draft, Float32
from ngramspec.draft_length.optimal import likeliest_path, reach_of, worthwhile_nodes

__all__ = [
    "common_length",
    "generous_cost",
    "may_pay",
    "progress_weights",
    "urgencies",
    "worthwhile_rows",
]

URGENCY = 4.0  # power of a row's steps left beside the most; 1.6 times plain's speed instead of
# 1.3 on recorded edits in batches of 16, and no slower anywhere
LAG = 2.5  # power of a row's tokens in a step, in an engine's batch
BEGUN = 8  # steps of one token each that a row's rate begins with


def worthwhile_rows(
    drafts: Sequence[Draft],
    curve: Float32,
    lasting: float = 1.0,
    weights: Sequence[float] | None = None,
    rate: float = math.nan,
) -> list[Draft]:
    """Cut a batch's drafts where its expected tokens are worth most.

    Theorem 3.8 of Leviathan et al. (2023) with a probability for each token, for a batch whose
    steps cost what all its positions together do: the likeliest tokens first, whichever row they
    are of, as many as pay. That theorem has one acceptance rate for all steps. Where they differ,
    the most tokens per cost over all steps come where each has the highest expected tokens less
    its cost at the rate of all steps (renewal reward; Dinkelbach 1967).

    Args:
        drafts: of the rows, empty ones included; without confidence each token counts a half.
        curve: float32 (n,), [d] the cost of a step with d drafted tokens in all.
        lasting: P(a token is still wanted | the one before it is), 0..1, of chains: behind the end
            of a request they are lost.
        weights: of the rows: what a token of each is worth; None: 1.
        rate: a row's tokens per cost in all steps; NaN: each step's own ratio is made highest.

    Example:
        >>> sure = Draft(np.array([1, 2], np.int32), None, np.array([0.9, 0.9], np.float32))
        >>> rare = Draft(np.array([3], np.int32), None, np.array([0.1], np.float32))
        >>> dear = np.array([1, 1.2, 1.4, 1.6], np.float32)
        >>> [len(each) for each in worthwhile_rows([sure, rare], dear)]
        [2, 0]
    """
    trees = [draft for draft in drafts if draft.parents is not None]
    confidences = [_reach(draft) if trees else _confidence(draft) for draft in drafts]
    kept = worthwhile_heads(confidences, curve, not trees, lasting, weights, rate)
    return [
        draft if n == len(draft.tokens) else draft.first(n)
        for draft, n in zip(drafts, kept, strict=True)
    ]


def _confidence(draft: Draft) -> Float32:
    """Of each node that it is accepted if the one before it is; a half where none is known."""
    if draft.confidence is None:
        return np.full(len(draft), 0.5, np.float32)
    return draft.confidence


def _reach(draft: Draft) -> Float32:
    """P(accepted) of each node with those above it, falling in the order of the nodes."""
    reach = reach_of(draft.parents, _confidence(draft))
    falling: Float32 = np.minimum.accumulate(reach).astype(np.float32)
    return falling


def progress_weights(
    emitted: Sequence[int], steps: Sequence[int], power: float = LAG
) -> list[float]:
    """What a token of each row is worth where nobody knows how much rows have before them.

    Rows that got few tokens in their steps end last, and hold up who waits for the batch; their
    steps are saved for others, too. So their tokens are worth more, by a power of the tokens that
    a row gets in a step.

    Args:
        emitted: tokens of each row so far.
        steps: in which it got them.
        power: of the tokens; 0 where nobody waits for a row.

    Returns:
        as many weights, with a mean of 1.

    Example:
        >>> [round(each, 2) for each in progress_weights([10, 40], [10, 10])]
        [1.84, 0.16]
    """
    slow = [((n + BEGUN) / (got + BEGUN)) ** power for got, n in zip(emitted, steps, strict=True)]
    mean = sum(slow) / len(slow)
    return [each / mean for each in slow]


def urgencies(left: Sequence[int], new: Sequence[int], steps: int) -> NDArray[np.float64]:
    """What a token of each row is worth: a batch ends with its slowest row.

    A row has as many steps before it as tokens are left, by the tokens of a step so far. Only the
    rows with the most steps left decide when the batch ends, so the others' tokens count less, by a
    power of their steps.

    Args:
        left: tokens that each row may still generate.
        new: tokens that each has generated, in ``steps`` steps.
        steps: of the batch so far.

    Returns:
        float64 (rows,), whose sum is 1.

    Example:
        >>> urgencies([80, 40], [20, 20], 20).round(2).tolist()
        [0.94, 0.06]
    """
    rate = (np.array(new, np.float64) + BEGUN) / (steps + BEGUN)
    ahead = np.maximum(np.array(left, np.float64), 1.0) / rate
    urgent = (ahead / ahead.max()) ** URGENCY / rate
    weights: NDArray[np.float64] = urgent / urgent.sum()
    return weights


def common_length(
    drafts: Sequence[Draft],
    weights: NDArray[np.float64],
    cost: Float32,
    surcharge: float = 1.0,
) -> tuple[int, bool]:
    """Where to cut the drafts of rows that run in one forward, all at the longest one's width.

    A row whose chain is short fills that width with branches, where its draft has some.

    Args:
        drafts: of each row, chains or trees, each with confidence or empty.
        weights: float64 (rows,), of a token of each row; their sum is 1.
        cost: float32 (longest + 2,) or longer, cost[k] of a forward of k positions in each row, in
            forwards of one.
        surcharge: times that a forward costs with branches.

    Returns:
        (the length with the most expected tokens per cost; whether it is the drafts' own, or of
        their most probable paths, because branches are not worth the surcharge).
    """
    reaches = [_reach_of(draft) for draft in drafts]
    length, value = _best_length(reaches, weights, cost)
    if surcharge <= 1.0 or all(draft.parents is None for draft in drafts):
        return length, True
    paths = [_of_path(draft, reach) for draft, reach in zip(drafts, reaches, strict=True)]
    chain_length, chain_value = _best_length(paths, weights, cost)
    return (length, True) if value / surcharge > chain_value else (chain_length, False)


def _reach_of(draft: Draft) -> NDArray[np.float64]:
    if draft.confidence is None:
        return np.zeros(0)
    return reach_of(draft.parents, draft.confidence)


def _of_path(draft: Draft, reach: NDArray[np.float64]) -> NDArray[np.float64]:
    if draft.parents is None or draft.confidence is None:
        return reach
    return reach[likeliest_path(draft.parents, draft.confidence)]


def _best_length(
    reaches: Sequence[NDArray[np.float64]], weights: NDArray[np.float64], cost: Float32
) -> tuple[int, float]:
    """The length with the most expected tokens per cost, and how many these are."""
    reach = np.zeros(max((len(each) for each in reaches), default=0))
    for own, weight in zip(reaches, weights, strict=True):
        reach[: len(own)] += weight * own
    length = worthwhile_nodes(reach, cost)
    return length, (1.0 + float(reach[:length].sum())) / float(cost[length + 1])
