"""Twin of the corrections of costs that are learned from differences between steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

NOISE, QUIETEST, HEARD = 0.1, 0.02, 0.05
SWINGS, RANGE, RECENT = 0.1, 3.0, 0.45


class Comparison:
    """What the next step is compared with."""

    def __init__(self) -> None:
        self.features: Float64 | None = None
        self.residual = 0.0


class Corrections:
    """A linear model of logarithms of times, learned from differences between steps."""

    def __init__(self, covariance: Float64, fade: float, revived: float) -> None:
        self._before = covariance
        self._keep = 1.0 - fade
        self.revived = revived
        self.mean = np.zeros(len(covariance))
        self.covariance = covariance.copy()
        self._noise = NOISE**2

    def learn(
        self, before: Comparison, features: Iterable[tuple[int, float]], residual: float
    ) -> float:
        """The probability that a step's time was not changed by a swing of the speed."""
        now = np.zeros(len(self.mean))
        for at, value in features:
            now[at] = value
        self.mean *= self._keep
        self.covariance = self._keep**2 * self.covariance + (1 - self._keep**2) * self._before
        likely = 1.0
        if before.features is not None:
            difference = now - before.features
            error = residual - before.residual - float(difference @ self.mean)
            likely = self._update(difference, error)
        if before.features is None or likely < 0.5:
            before.features, before.residual = now, residual
        else:
            before.features = RECENT * before.features + (1 - RECENT) * now
            before.residual = RECENT * before.residual + (1 - RECENT) * residual
        return likely

    def _update(self, difference: Float64, error: float) -> float:
        spread = self.covariance @ difference
        known = float(difference @ spread)
        variance = known + self._noise * (1 + (1 - RECENT) / (1 + RECENT))
        normal = np.exp(-(error**2) / variance / 2) / np.sqrt(2 * np.pi * variance)
        likely = float((1 - SWINGS) * normal / ((1 - SWINGS) * normal + SWINGS / RANGE))
        self.mean += likely / variance * spread * error
        self.covariance -= likely / variance * np.outer(spread, spread)
        self.covariance += (1 - likely) * self.revived * self._before
        heard = max(error**2 - known, QUIETEST**2)
        self._noise += likely * HEARD * (heard - self._noise)
        return likely
