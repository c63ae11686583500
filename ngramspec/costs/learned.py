"""What forwards of a model cost, learned from steps on a machine whose speed is not constant.

The cost of a forward is a function of its width, of the context's length and of whether its draft
has branches. Its logarithm is what was assumed, corrected by a linear model: a correction for each
width, one that grows with the context's length, and a surcharge for branches. The corrections are
learned by recursive least squares (a Kalman filter without dynamics of its own), with neighbouring
widths taken to be alike until they are measured.

Two things make that work on a shared machine. A step is compared with those just before it, and
what is learned is the difference of their forwards: steps of one kind say nothing, however the
machine's speed changes, and a plain step among them says what drafts cost. And a difference that is
hard to believe counts as much as it is probably no swing of the machine's (probabilistic data
association, Bar-Shalom and Tse 1975): stalls teach nothing.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.corrections import Comparison, Corrections

__all__ = ["Comparison", "Corrections", "CurveCorrections", "Forward"]

Float64 = NDArray[np.float64]

KNOTS = (*range(2, 25), 32, 48, 64, 128, 512, 2048)  # widths with a correction of their own
HALF = 2048.0  # positions of context at which half of the correction for long contexts counts

# Standard deviations, of the logarithm of a cost, before anything is measured:
SECOND = 0.15  # of a forward's second position
TREND = 0.15  # of each further e-fold of the width, the same for all of them
WIDER = 0.08  # of each by itself
SINGLE = 0.05  # of each width by itself
LONG_CONTEXT_SPREADS = 0.25, 0.2, 0.1, 0.02  # the same four, of the correction for long contexts
BRANCHES = 0.1, 0.2  # of the surcharge for branches, in short and in long contexts

REVIVED = 0.1  # share of what was unknown that is so again after a swing of the machine's speed
FADE = 1 / 1024  # of what is known, forgotten at each step


def positions_weight(length: int) -> float:
    """How much of the correction for long contexts counts at ``length`` positions, 0..1."""
    return length / (length + HALF)


class CurveCorrections:
    """The corrections of one model's forwards of one kind. Threads may share it.

    Learning from a step and reading a curve each cost O(knots^2) and O(limit * knots) at most,
    some 20 microseconds. Memory: O(knots^2), some 60 KB.

    Args:
        certainty: what the standard deviations before anything is measured are divided by.

    Attributes:
        steps: how many have been learned from.
    """

    def __init__(self, certainty: float = 1.0) -> None:
        self._corrections = Corrections(_covariance() / certainty**2, FADE, REVIVED)
        self._counts: dict[int, int] = {}
        self.steps = 0
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Begin anew, with the usual certainty."""
        with self._lock:
            self._corrections = Corrections(_covariance(), FADE, REVIVED)
            self._counts.clear()
            self.steps += 1

    def count(self, width: int) -> int:
        """How many forwards of a width were learned from."""
        return self._counts.get(width, 0)

    def learn(self, before: Comparison, now: Forward, residual: float) -> float:
        """Learn from the time of a step.

        Args:
            before: what it is compared with; the step is taken in.
            now: its forward.
            residual: the logarithm of its time / what was assumed that its forward costs.

        Returns:
            the probability that its time was not changed by a swing of the machine's speed.
        """
        features = now.features()
        with self._lock:
            self._counts[now.width] = self._counts.get(now.width, 0) + 1
            self.steps += 1
            return self._corrections.learn(before, features, residual)

    def corrections(self, limit: int, length: int) -> Float64:
        """Of the logarithms of costs at widths 0..limit without branches, float64 (limit + 1,)."""
        count, weight = len(KNOTS), positions_weight(length)
        with self._lock:
            known = (
                self._corrections.mean[:count] + weight * self._corrections.mean[count : 2 * count]
            )
        corrected: Float64 = _basis(limit) @ known
        return corrected

    def surcharge(self, length: int) -> float:
        """Of the logarithm of a cost, for branches; at least 0."""
        weight = positions_weight(length)
        with self._lock:
            return max(float(self._corrections.mean[-2] + weight * self._corrections.mean[-1]), 0.0)

    def deviation(self, forward: Forward) -> float:
        """Standard deviation of the logarithm of a forward's cost, as far as it is known."""
        features = forward.features()
        with self._lock:
            covariance = self._corrections.covariance
            variance = sum(a * b * covariance[i, j] for i, a in features for j, b in features)
        return math.sqrt(max(variance, 0.0))


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward that costs something.

    Attributes:
        width: positions, >= 1.
        length: of the context.
        branches: whether the draft has some.
    """

    width: int
    length: int
    branches: bool = False

    def features(self) -> list[tuple[int, float]]:
        """What its cost is linear in: (which of 2 * knots + 2, value); none for a plain step."""
        weight, count = positions_weight(self.length), len(KNOTS)
        own = _knots(self.width)
        found = own + [(count + at, weight * share) for at, share in own]
        if self.branches:
            found += [(2 * count, 1.0), (2 * count + 1, weight)]
        return found


_bases: dict[int, Float64] = {}


def _basis(limit: int) -> Float64:
    """How much of each knot's correction widths have, float64 (limit + 1, knots)."""
    basis = _bases.get(limit)
    if basis is None:
        basis = _bases[limit] = np.array([_row(width) for width in range(limit + 1)])
    return basis


def _row(width: int) -> Float64:
    """How much of each knot's correction a width has, float64 (knots,)."""
    row = np.zeros(len(KNOTS))
    for at, share in _knots(width):
        row[at] = share
    return row


def _knots(width: int) -> list[tuple[int, float]]:
    """(knot, how much of its correction a width has): at most two."""
    at = bisect_right(KNOTS, width) - 1
    if at < 0:
        return []
    if KNOTS[at] == width or at == len(KNOTS) - 1:
        return [(at, 1.0)]
    share = (width - KNOTS[at]) / (KNOTS[at + 1] - KNOTS[at])
    return [(at, 1.0 - share), (at + 1, share)]


def _covariance() -> Float64:
    """Of all corrections before anything is measured."""
    logs = np.log(np.array(KNOTS) / 2)
    nearer = np.minimum(logs[:, None], logs[None, :])
    count = len(KNOTS)
    covariance = np.zeros((2 * count + 2, 2 * count + 2))
    for at, spreads in enumerate(((SECOND, TREND, WIDER, SINGLE), LONG_CONTEXT_SPREADS)):
        here = slice(at * count, (at + 1) * count)
        second, trend, wider, single = (each**2 for each in spreads)
        covariance[here, here] = (
            second + trend * np.outer(logs, logs) + wider * nearer + single * np.eye(count)
        )
    covariance[-2, -2], covariance[-1, -1] = BRANCHES[0] ** 2, BRANCHES[1] ** 2
    return covariance
