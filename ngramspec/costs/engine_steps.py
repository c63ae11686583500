"""What an engine's steps cost, learned from their times for all numbers of rows at once.

A step's time is taken to depend on its rows, on its drafted tokens, and on whether anything is
drafted: attention, sampling and bookkeeping may take another path then. So a step of any number of
rows says something of all others: a serving engine, whose batches change at every step, is known
after a few dozen steps.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ngramspec.costs.curve import assumed_cost
from ngramspec.costs.learned import Comparison, Corrections, Float64
from ngramspec.draft import Float32

Int64 = NDArray[np.int64]

OCTAVES = 13  # doublings of the positions with a correction of their own

# Of a CPU: what a row, and a drafted token, add to a step of one row without a draft; and the
# standard deviation of the logarithm of what having drafted anything costs. Measured in float32:
# 0.057 and 0.035 (vLLM, SmolLM2-135M, one core). In bfloat16 they are guessed. "quantized" is
# llama.cpp's: 0.1 to 0.7, by the type of the weights.
CPU = {
    "float32": (0.06, 0.04, 0.01),
    "bfloat16": (0.04, 0.03, 0.01),
    "quantized": (0.3, 0.2, 0.05),
}

# Standard deviations, of the logarithm of a step's time, before anything is measured:
NEARLY = 0.01  # of each doubling of the positions, by itself: a CPU's steps are nearly linear
APART = 0.7  # of the logarithm of what a CPU's row, or drafted token, adds
GPU = 0.5, 0.1, 0.05  # of each doubling, the same for all of them; of each by itself; of having
# drafted anything; all on a GPU,
DRAFTED_SPREAD = 0.1  # as that of positions that are all drafted
FADE = 1 / 8192  # of what is known, forgotten at each step
REVIVED = 0.01  # see Corrections; with 0.1, stalls and swings of the machine's speed made the cost
# of drafted tokens twice as uncertain, in simulated steps of which a tenth stalled
EARLY = 1.0  # the same, at the first step; then less by the number of steps
CAUTION = {"cpu": 0.0, "gpu": 0.5}  # so many of them are added to what is believed,
BOLDER = 64  # and after so many steps half as many: what is never drafted is never measured


class EngineStepCosts:
    """The costs of steps of all numbers of rows. One thread at a time.

    Learning from a step takes some 5 microseconds, reading a curve some 20.

    Args:
        device: "cpu" or "gpu".
        dtype: of the model, by name; of a CPU also "quantized".
        most: positions of a step whose costs are told apart.

    Attributes:
        steps: that were learned from.
    """

    def __init__(self, device: str, dtype: str, most: int) -> None:
        self.steps = 0
        self._most = most
        self._assumed: _Assumed = _Linear(dtype) if device == "cpu" else _Table(most, dtype)
        self._basis = _hats(most + 1)
        self._model = Corrections(_covariance(*self._assumed.spreads), FADE, EARLY)
        self._before = Comparison()
        self._caution = CAUTION[device]

    def record_time(self, rows: int, drafted: int, seconds: float) -> float:
        """Learn from the time of a step.

        Returns:
            the probability that it was not changed by a swing of the machine's speed.
        """
        self.steps += 1
        self._model.revived = max(REVIVED, EARLY / self.steps)
        rows = min(rows, self._most)
        drafted = min(drafted, self._most - rows)
        log, own = self._assumed.step(rows, drafted, self._model.mean[OCTAVES + 1 :])
        features = _octaves(rows + drafted)
        if drafted:
            features.append((OCTAVES, 1.0))
        # What is learned is linear in the form's own coefficients near those believed (an extended
        # Kalman filter): the residual is of coefficients of 0.
        residual = math.log(max(seconds, 1e-9)) - log
        for at, value in enumerate(own, OCTAVES + 1):
            features.append((at, value))
            residual += value * float(self._model.mean[at])
        return self._model.learn(self._before, features, residual)

    def curve(self, rows: int, most: int) -> Float32:
        """float32 (n,), [d] a step of d drafted tokens, in steps without; it never falls.

        What is hardly known counts as dearer than it probably is, at first.

        Args:
            rows: of the step, >= 1.
            most: drafted tokens; n is most + 1, or less where steps have no more positions.
        """
        rows = min(rows, self._most)
        most = min(most, self._most - rows)
        logs, features = self._steps(rows, np.arange(most + 1))
        logs -= logs[0]
        if self._caution and self.steps < 8 * BOLDER:
            caution = self._caution * 0.5 ** (self.steps / BOLDER)
            logs += caution * self._deviations(features - features[0])
        curve: Float32 = np.maximum.accumulate(np.exp(logs)).astype(np.float32)
        return curve

    def _steps(self, rows: int, drafted: Int64) -> tuple[Float64, Float64]:
        """Steps of so many rows, as far as they are known.

        Args:
            drafted: int64 (n,), tokens of each step.

        Returns:
            float64 (n,), the logarithms of their times in any unit; and float64 (n, coefficients),
            the derivatives of those.
        """
        mean, own = self._model.mean, OCTAVES + 1
        logs, assumed = self._assumed.steps(rows, drafted, mean[own:])
        features = np.empty((len(drafted), len(mean)))
        features[:, :OCTAVES] = self._basis[rows + drafted]
        features[:, OCTAVES] = drafted > 0
        features[:, own:] = assumed
        logs += features[:, :own] @ mean[:own]
        return logs, features

    def _deviations(self, features: Float64) -> Float64:
        """Standard deviations of logarithms of times, as far as they are known, float64 (n,)."""
        variances = np.einsum("ij,ij->i", features @ self._model.covariance, features)
        deviations: Float64 = np.sqrt(np.maximum(variances, 0.0))
        return deviations


class _Assumed(Protocol):
    """The form that times are taken to have, with coefficients of its own, 0 at first.

    Attributes:
        spreads: standard deviations before anything is measured, as ``_covariance`` takes them.
    """

    spreads: tuple[float, ...]

    def step(self, rows: int, drafted: int, own: Float64) -> tuple[float, tuple[float, ...]]:
        """As ``steps``, of a single one: cold caches make arrays dear."""

    def steps(self, rows: int, drafted: Int64, own: Float64) -> tuple[Float64, Float64]:
        """Logarithms of times and their derivatives in ``own``, as ``_steps`` returns them."""


class _Linear:
    """Of a CPU: each row and each drafted token adds something, more or less than assumed."""

    def __init__(self, dtype: str) -> None:
        self._row, self._token, drafted = CPU.get(dtype, CPU["float32"])
        self.spreads: tuple[float, ...] = (0.0, NEARLY, drafted, APART, APART)

    def step(self, rows: int, drafted: int, own: Float64) -> tuple[float, tuple[float, ...]]:
        more = self._row * math.exp(own[0]) * (rows - 1), self._token * math.exp(own[1]) * drafted
        time = 1.0 + sum(more)
        return math.log(time), (more[0] / time, more[1] / time)

    def steps(self, rows: int, drafted: Int64, own: Float64) -> tuple[Float64, Float64]:
        added = np.empty((len(drafted), 2))
        added[:, 0] = self._row * math.exp(own[0]) * (rows - 1)
        np.multiply(self._token * math.exp(own[1]), drafted, out=added[:, 1])
        times = 1.0 + added.sum(axis=1)
        return np.log(times), added / times[:, None]


class _Table:
    """Of a GPU: positions as of ``assumed_cost``, and a share of drafted ones that may differ."""

    spreads: tuple[float, ...] = (*GPU, DRAFTED_SPREAD)

    def __init__(self, most: int, dtype: str) -> None:
        self._known = np.log(assumed_cost("gpu", most, dtype=dtype)).astype(np.float64)

    def step(self, rows: int, drafted: int, own: Float64) -> tuple[float, tuple[float, ...]]:
        share = drafted / (rows + drafted)
        return float(self._known[rows + drafted] + own[0] * share), (share,)

    def steps(self, rows: int, drafted: Int64, own: Float64) -> tuple[Float64, Float64]:
        share = drafted / (rows + drafted)
        return self._known[rows + drafted] + own[0] * share, share[:, None]


def _octaves(positions: int) -> list[tuple[int, float]]:
    """(octave, how much of its correction a number of positions has), as of ``_hats``."""
    log = min(math.log2(positions), OCTAVES)
    below = math.floor(log)
    hats = (below - 1, 1.0 - (log - below)), (below, log - below)
    return [(at, share) for at, share in hats if 0 <= at < OCTAVES and share > 0]


def _hats(size: int) -> Float64:
    """How much of each octave's correction numbers of positions have, float64 (size, OCTAVES).

    Linear in the logarithm of the positions between 2, 4, 8 ...; 0 for a single one.
    """
    logs = np.log2(np.maximum(np.arange(size), 1)).clip(max=OCTAVES)
    hats: Float64 = np.maximum(1.0 - np.abs(logs[:, None] - np.arange(1, OCTAVES + 1)), 0.0)
    return hats


def _covariance(trend: float, wider: float, drafted: float, *own: float) -> Float64:
    """Of all corrections before anything is measured."""
    octaves = np.arange(1.0, OCTAVES + 1)
    nearer = np.minimum(octaves[:, None], octaves[None, :])
    covariance = np.diag(np.square((0.0,) * OCTAVES + (drafted, *own)))
    covariance[:OCTAVES, :OCTAVES] = trend**2 * np.outer(octaves, octaves) + wider**2 * nearer
    return covariance
