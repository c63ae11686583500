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

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

KNOTS = (*range(2, 25), 32, 48, 64, 128, 512, 2048)  # widths with a correction of their own
HALF = 2048.0  # positions of context at which half of the correction for long contexts counts

# Standard deviations, of the logarithm of a cost, before anything is measured:
SECOND = 0.15  # of a forward's second position
TREND = 0.15  # of each further e-fold of the width, the same for all of them
WIDER = 0.08  # of each by itself
SINGLE = 0.05  # of each width by itself
LONG = 0.25, 0.2, 0.1, 0.02  # the same four, of the correction for long contexts
BRANCHES = 0.1, 0.2  # of the surcharge for branches, in short and in long contexts

NOISE = 0.1  # standard deviation of a step's time, at first
QUIETEST = 0.02  # and at least
HEARD = 0.05  # weight of a step in what that is taken to be
SWINGS = 0.1  # probability that the machine's speed changes within a step; the logarithms of such
RANGE = 3.0  # changes are spread over this range
REVIVED = 0.1  # share of what was unknown at first that is so again after such a step
RECENT = 0.45  # weight of a step's predecessors, in what the next one is compared with
FADE = 1 / 1024  # of what is known, forgotten at each step


def positions_weight(length: int) -> float:
    """How much of the correction for long contexts counts at ``length`` positions, 0..1."""
    return length / (length + HALF)


@dataclass(slots=True)
class Comparison:
    """What one generation's next step is compared with: its last steps, decaying.

    Attributes:
        features: float64 (n,), of their forwards; None: there is none.
        residual: of the logarithm of their times, against what was assumed.
    """

    features: Float64 | None = None
    residual: float = 0.0

    def follow(self, features: Float64, residual: float, *, anew: bool) -> None:
        """Take a step in; ``anew``: alone, as the machine's speed has changed."""
        if self.features is None or anew:
            self.features, self.residual = features, residual
        else:
            self.features = RECENT * self.features + (1 - RECENT) * features
            self.residual = RECENT * self.residual + (1 - RECENT) * residual


class Corrections:
    """A linear model of logarithms of times, learned from differences between steps.

    Recursive least squares; a difference counts as much as it is probably no swing of the machine.
    One thread at a time. Learning costs O(features^2).

    Args:
        covariance: float64 (n, n), of the coefficients before anything is measured.
        fade: of what is known, forgotten at each step.
        revived: share of what was unknown at first that is so again after a swing of the
            machine's speed. The more, the sooner other costs are believed, and the more stalls
            bend those that are known.

    Attributes:
        mean: float64 (n,), of the coefficients.
    """

    def __init__(self, covariance: Float64, fade: float = FADE, revived: float = REVIVED) -> None:
        self._before = covariance
        self._keep = 1.0 - fade
        self._revived = revived
        self.mean = np.zeros(len(covariance))
        self._covariance = covariance.copy()
        self._noise = NOISE**2  # variance of the logarithm of a step's time

    def learn(self, before: Comparison, features: Float64, residual: float) -> float:
        """Learn from the time of a step.

        Args:
            before: what it is compared with; the step is taken in.
            features: float64 (n,), of the step.
            residual: the logarithm of its time / what was assumed of it.

        Returns:
            the probability that its time was not changed by a swing of the machine's speed.
        """
        self._fade()
        if before.features is None:
            before.follow(features, residual, anew=True)
            return 1.0
        difference = features - before.features
        error = residual - before.residual - float(difference @ self.mean)
        likely = self._update(difference, error)
        before.follow(features, residual, anew=likely < 0.5)
        return likely

    def deviations(self, features: Float64) -> Float64:
        """Standard deviations of logarithms of times, as far as they are known, float64 (m,).

        Args:
            features: float64 (m, n).
        """
        variances = np.einsum("ij,ij->i", features @ self._covariance, features)
        deviations: Float64 = np.sqrt(np.maximum(variances, 0.0))
        return deviations

    def _fade(self) -> None:
        """Forget a little: what is not measured again is as assumed in the end."""
        self.mean *= self._keep
        self._covariance *= self._keep**2
        self._covariance += (1 - self._keep**2) * self._before

    def _update(self, difference: Float64, error: float) -> float:
        """Correct by the error of a predicted difference.

        Returns:
            the probability that it is an error of the costs, and not the machine's speed.
        """
        spread = self._covariance @ difference
        known = float(difference @ spread)
        variance = known + self._noise * (1 + (1 - RECENT) / (1 + RECENT))
        normal = np.exp(-(error**2) / variance / 2) / np.sqrt(2 * np.pi * variance)
        likely = float((1 - SWINGS) * normal / ((1 - SWINGS) * normal + SWINGS / RANGE))
        gain = likely / variance * spread
        self.mean += gain * error
        self._covariance -= np.outer(gain, spread)
        # If it comes again, it is believed.
        self._covariance += (1 - likely) * self._revived * self._before
        heard = max(error**2 - known, QUIETEST**2)
        self._noise += likely * HEARD * (heard - self._noise)
        return likely


class LearnedCosts:
    """The corrections of one model's forwards of one kind. Threads may share it.

    Learning from a step and reading a curve each cost O(knots^2) and O(limit * knots) at most,
    some 20 microseconds. Memory: O(knots^2), some 60 KB.

    Args:
        certainty: what the standard deviations before anything is measured are divided by.

    Attributes:
        steps: how many have been learned from.
    """

    def __init__(self, certainty: float = 1.0) -> None:
        self._corrections = Corrections(_covariance() / certainty**2)
        self._counts: dict[int, int] = {}
        self.steps = 0
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Begin anew, with the usual certainty."""
        with self._lock:
            self._corrections = Corrections(_covariance())
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
            return float(self._corrections.deviations(features[None])[0])


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

    def features(self) -> Float64:
        """What its cost is linear in, float64 (2 * knots + 2,); 0 for a plain step's."""
        weight = positions_weight(self.length)
        own = _row(self.width)
        more = np.array((1.0, weight)) * self.branches
        return np.concatenate((own, weight * own, more))


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
    if width >= KNOTS[0]:
        at = min(int(np.searchsorted(KNOTS, width, side="right")) - 1, len(KNOTS) - 1)
        row[at] = 1.0
        if KNOTS[at] < width < KNOTS[-1]:
            share = (width - KNOTS[at]) / (KNOTS[at + 1] - KNOTS[at])
            row[at : at + 2] = 1 - share, share
    return row


def _covariance() -> Float64:
    """Of all corrections before anything is measured."""
    logs = np.log(np.array(KNOTS) / 2)
    nearer = np.minimum(logs[:, None], logs[None, :])
    count = len(KNOTS)
    covariance = np.zeros((2 * count + 2, 2 * count + 2))
    for at, spreads in enumerate(((SECOND, TREND, WIDER, SINGLE), LONG)):
        here = slice(at * count, (at + 1) * count)
        second, trend, wider, single = (each**2 for each in spreads)
        covariance[here, here] = (
            second + trend * np.outer(logs, logs) + wider * nearer + single * np.eye(count)
        )
    covariance[-2, -2], covariance[-1, -1] = BRANCHES[0] ** 2, BRANCHES[1] ** 2
    return covariance
