"""Learns the costs of a model's forwards from step times on a machine of varying speed.

The cost of a forward depends on its width, the context length, and whether the draft has branches.
Its logarithm is the assumed one plus a linear model: a correction per width, a second one that
grows with the context length, and a surcharge for branches. The corrections are learned by
recursive least squares (a Kalman filter without dynamics). Neighbouring widths are assumed to be
correlated until they are measured.

Two measures make this work on a shared machine. First, a step is compared with the steps just
before it, and only the difference between their forwards is learned from. Steps of equal forwards
therefore teach nothing, whatever the machine's speed does; a plain step between drafted ones shows
the cost of drafts. Second, an observation is weighted by the probability that it is not caused by
a change of the machine's speed (probabilistic data association, Bar-Shalom and Tse 1975), so
stalls teach nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import Comparison, Corrections

__all__ = ["Comparison", "Corrections", "Forward"]

Float64 = NDArray[np.float64]

KNOTS = (*range(2, 25), 32, 48, 64, 128, 512, 2048)  # widths with a separate correction
# Context length, in positions, at which the long-context correction has half its weight. Not tuned.
LONG_CONTEXT_HALF_WEIGHT_POSITIONS = 2048.0

# Prior standard deviations of the logarithm of a cost. Not tuned one by one: see
# tests/costs/test_simulated_clock.py.
# Of a forward's second position; of each further e-fold of the width, common to all of them and
# independently; and of each width independently.
WIDTH_SPREADS = 0.2, 0.25, 0.08, 0.05
LONG_CONTEXT_SPREADS = 0.25, 0.2, 0.1, 0.02  # the same four, of the long-context correction
BRANCH_SPREADS = 0.1, 0.2  # of the surcharge for branches, in short and in long contexts

REVIVED_SHARE = 0.1  # share of the prior uncertainty restored after a change of the machine's speed
FORGOTTEN_PER_STEP = 1 / 1024  # share of the knowledge that is forgotten at each step


def positions_weight(length: int) -> float:
    """Weight of the long-context correction in contexts of ``length`` positions, 0..1."""
    return length / (length + LONG_CONTEXT_HALF_WEIGHT_POSITIONS)


@dataclass(frozen=True, slots=True)
class Forward:
    """What the cost of a forward depends on.

    Attributes:
        width: number of positions, >= 1.
        length: context length in positions.
        branches: whether the draft has branches.
    """

    width: int
    length: int
    branches: bool = False

    def features(self) -> list[tuple[int, float]]:
        """Sparse features: (index in 0..2 * knots + 1, value). Empty for a plain step."""
        weight, count = positions_weight(self.length), len(KNOTS)
        own = _knots(self.width)
        found = own + [(count + at, weight * share) for at, share in own]
        if self.branches:
            found += [(2 * count, 1.0), (2 * count + 1, weight)]
        return found


@cache
def knot_weights(limit: int) -> Float64:
    """Weights of the knots' corrections for widths 0..limit, float64 (limit + 1, knots)."""
    basis = np.zeros((limit + 1, len(KNOTS)))
    for width in range(limit + 1):
        for at, share in _knots(width):
            basis[width, at] = share
    return basis


def _knots(width: int) -> list[tuple[int, float]]:
    """(knot index, weight) of the at most two knots around a width."""
    at = bisect_right(KNOTS, width) - 1
    if at < 0:
        return []
    if KNOTS[at] == width or at == len(KNOTS) - 1:
        return [(at, 1.0)]
    share = (width - KNOTS[at]) / (KNOTS[at + 1] - KNOTS[at])
    return [(at, 1.0 - share), (at + 1, share)]


def prior_corrections(certainty: float = 1.0) -> Corrections:
    """Corrections, 2 * knots + 2, of which nothing is measured.

    ``certainty`` divides their prior standard deviations.
    """
    logs = np.log(np.array(KNOTS) / 2)
    nearer = np.minimum(logs[:, None], logs[None, :])
    count = len(KNOTS)
    covariance = np.zeros((2 * count + 2, 2 * count + 2))
    for at, spreads in enumerate((WIDTH_SPREADS, LONG_CONTEXT_SPREADS)):
        here = slice(at * count, (at + 1) * count)
        second, trend, wider, single = (each**2 for each in spreads)
        covariance[here, here] = (
            second + trend * np.outer(logs, logs) + wider * nearer + single * np.eye(count)
        )
    covariance[-2, -2], covariance[-1, -1] = BRANCH_SPREADS[0] ** 2, BRANCH_SPREADS[1] ** 2
    return Corrections(covariance / certainty**2, FORGOTTEN_PER_STEP, REVIVED_SHARE)
