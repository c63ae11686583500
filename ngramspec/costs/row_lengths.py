"""Draft lengths of rows that share a forward: what each is given of its width or its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import best_prefix_lengths
from ngramspec.costs.policies import likeliest_path, reach_of, worthwhile_nodes
from ngramspec.draft import Draft, Float32

# Exponent of a row's remaining steps relative to the maximum. On recorded edits in batches of 16 it
# raised the speedup over the baseline from 1.3 to 1.6, and no other recording got slower.
URGENCY_POWER = 4.0
UNREFILLED_MARGIN = 0.4  # if requests start together, a step is saved only for the slowest
LAG_POWER = 2.5  # exponent of a row's tokens per step, in an engine's batch
PRIOR_STEPS = 8  # steps of one token each that are added to a row's rate


def worthwhile_rows(
    drafts: Sequence[Draft],
    curve: Float32,
    lasting: float = 1.0,
    weights: Sequence[float] | None = None,
    rate: float = math.nan,
) -> list[Draft]:
    """Cut a batch's drafts so that the expected tokens per cost are highest.

    Generalizes Theorem 3.8 of Leviathan et al. (2023) to one probability per token and to a batch
    whose step cost depends on its total number of positions: the most probable tokens of all rows
    are added first, while they are worth their cost. The theorem assumes one acceptance rate for
    all steps. If it differs between steps, the tokens per cost over all steps are highest if each
    step maximizes expected tokens - rate * cost (renewal reward; Dinkelbach 1967).

    Args:
        drafts: one per row; may be empty. Without confidence each token counts as 0.5.
        curve: float32 (n,): [d] is the cost of a step with d drafted tokens over all rows.
        lasting: P(a token is still needed | the one before it is), 0..1, for chains: tokens after
            the end of a request are lost.
        weights: value of a token of each row; None: 1.
        rate: a row's tokens per cost over all steps; NaN: maximize each step's own ratio.

    Example:
        >>> sure = Draft(np.array([1, 2], np.int32), None, np.array([0.9, 0.9], np.float32))
        >>> rare = Draft(np.array([3], np.int32), None, np.array([0.1], np.float32))
        >>> steep = np.array([1, 1.2, 1.4, 1.6], np.float32)
        >>> [len(each) for each in worthwhile_rows([sure, rare], steep)]
        [2, 0]
    """
    probabilities = [_confidence(draft) for draft in drafts]
    chains = all(draft.parents is None for draft in drafts)
    if not chains:  # then P(accepted) of each node and its ancestors
        probabilities = [
            np.minimum.accumulate(reach_of(draft.parents, confidence)).astype(np.float32)
            for draft, confidence in zip(drafts, probabilities, strict=True)
        ]
    kept = best_prefix_lengths(probabilities, curve, chains, lasting, weights, rate)
    return [
        draft if n == len(draft.tokens) else draft.first(n)
        for draft, n in zip(drafts, kept, strict=True)
    ]


def _confidence(draft: Draft) -> Float32:
    """P(accepted | the node before is) of each node, float32 (n,); 0.5 if not known."""
    if draft.confidence is None:
        return np.full(len(draft), 0.5, np.float32)
    return draft.confidence


class Refills:
    """Whether the requests that end in an engine's batch are replaced while it continues.

    Attributes:
        share: of them, at first 0. 1: the server is always busy, and tokens of all rows have the
            same value. 0: requests start together, and all wait for the slowest.
    """

    WEIGHT = 0.1  # of one request, or of the end of a whole batch

    def __init__(self) -> None:
        self.share = 0.0

    def step(self, rows: int, kept: int) -> None:
        """Record a step: of ``rows`` rows, ``kept`` had tokens in the step before, too."""
        for _ in range(rows - kept if kept else 1):
            self.share += self.WEIGHT * ((kept > 0) - self.share)

    def price(self, rows: int) -> float:
        """Tokens that each unit of cost must yield: waiting rows gain less from each other's."""
        return 1.0 if rows == 1 else 1.0 + UNREFILLED_MARGIN * (1.0 - self.share)


def progress_weights(
    emitted: Sequence[int], steps: Sequence[int], power: float = LAG_POWER
) -> list[float]:
    """Value of a token of each row when remaining lengths are unknown, with a mean of 1.

    Rows with few tokens per step end last and delay the whole batch. So their tokens have a higher
    value, by a power of the row's tokens per step: 0 if no request waits for a row.

    Args:
        emitted: number of tokens of each row so far.
        steps: number of steps that each row has had.

    Example:
        >>> [round(each, 2) for each in progress_weights([10, 40], [10, 10])]
        [1.84, 0.16]
    """
    slow = [
        ((n + PRIOR_STEPS) / (got + PRIOR_STEPS)) ** power
        for got, n in zip(emitted, steps, strict=True)
    ]
    mean = sum(slow) / len(slow)
    return [each / mean for each in slow]


def urgencies(left: Sequence[int], new: Sequence[int], steps: int) -> NDArray[np.float64]:
    """Value of a token of each row, given that a batch ends with its slowest row.

    A row's remaining steps are estimated as its remaining tokens divided by its tokens per step so
    far. Only the rows with the most remaining steps decide when the batch ends, so the tokens of
    other rows count less, by a power of their remaining steps.

    Args:
        left: tokens that each row may still generate.
        new: tokens that each row has generated in ``steps`` steps.
        steps: number of steps of the batch so far.

    Returns:
        Weights, float64 (rows,), with a sum of 1.

    Example:
        >>> urgencies([80, 40], [20, 20], 20).round(2).tolist()
        [0.94, 0.06]
    """
    rate = (np.array(new, np.float64) + PRIOR_STEPS) / (steps + PRIOR_STEPS)
    ahead = np.maximum(np.array(left, np.float64), 1.0) / rate
    urgent = (ahead / ahead.max()) ** URGENCY_POWER / rate
    weights: NDArray[np.float64] = urgent / urgent.sum()
    return weights


def common_length(
    drafts: Sequence[Draft], weights: NDArray[np.float64], cost: Float32, surcharge: float = 1.0
) -> tuple[int, bool]:
    """Where to cut the drafts of rows that share a forward of the longest draft's width.

    A row with a short chain fills that width with branches, if its draft has some.

    Args:
        drafts: one per row, chains or trees, each with confidence or empty.
        weights: float64 (rows,), value of a token of each row, with a sum of 1.
        cost: float32 (longest + 2,) or longer: [k] is the cost of a forward of k positions per row,
            relative to one.
        surcharge: factor on the cost of a forward with branches.

    Returns:
        The length with the most expected tokens per cost; and True if it applies to the drafts, or
        False if it applies to their most probable paths, because branches are not worth the
        surcharge.
    """
    reaches = [reach_of(draft.parents, _confidence(draft)) for draft in drafts]
    length, value = _best_length(reaches, weights, cost)
    if surcharge <= 1.0 or all(draft.parents is None for draft in drafts):
        return length, True
    paths = [
        reach if draft.parents is None else reach[likeliest_path(draft.parents, _confidence(draft))]
        for draft, reach in zip(drafts, reaches, strict=True)
    ]
    chain_length, chain_value = _best_length(paths, weights, cost)
    return (length, True) if value / surcharge > chain_value else (chain_length, False)


def _best_length(
    reaches: Sequence[NDArray[np.float64]], weights: NDArray[np.float64], cost: Float32
) -> tuple[int, float]:
    """The length with the most expected tokens per cost, and these tokens per cost."""
    reach = np.zeros(max((len(each) for each in reaches), default=0))
    for own, weight in zip(reaches, weights, strict=True):
        reach[: len(own)] += weight * own
    length = worthwhile_nodes(reach, cost)
    return length, (1.0 + float(reach[:length].sum())) / float(cost[length + 1])
