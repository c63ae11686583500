"""Draft lengths of rows that share a forward by its tokens, and what a token of each is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ngramspec._native import best_prefix_lengths
from ngramspec.costs.policies import confidence_of, reach_of
from ngramspec.draft import Draft, Float32, Float64

# Exponent of a row's remaining steps relative to the maximum. On recorded edits in batches of 16 it
# raised the speedup over the baseline from 1.3 to 1.6, and no other recording got slower.
URGENCY_POWER = 4.0
UNREFILLED_MARGIN = 0.4  # if requests start together, a step is saved only for the slowest
LAG_POWER = 1.5  # the same in an engine's batch if no request waits for a row
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
    probabilities = [confidence_of(draft) for draft in drafts]
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


def urgencies(
    left: Sequence[int],
    new: Sequence[int],
    steps: int | Sequence[int],
    power: float = URGENCY_POWER,
) -> Float64:
    """Value of a token of each row, given that a batch ends with its slowest row.

    A row's remaining steps are estimated as its remaining tokens divided by its tokens per step so
    far. Only the rows with the most remaining steps decide when the batch ends, so the tokens of
    other rows count less, by a power of their remaining steps.

    Args:
        left: tokens that each row may still generate; equal if not known.
        new: tokens that each row has generated in ``steps`` steps.
        steps: number of steps so far, of the batch or of each row.
        power: exponent of the remaining steps. -1: tokens of all rows have the same value.

    Returns:
        Weights, float64 (rows,), with a sum of 1.

    Example:
        >>> urgencies([80, 40], [20, 20], 20).round(2).tolist()
        [0.94, 0.06]
    """
    rate = (np.array(new, np.float64) + PRIOR_STEPS) / (np.array(steps) + PRIOR_STEPS)
    ahead = np.maximum(np.array(left, np.float64), 1.0) / rate
    urgent = (ahead / ahead.max()) ** power / rate
    weights: Float64 = urgent / urgent.sum()
    return weights
