"""Learns the costs of an engine's steps, for all numbers of rows at once.

A step's time is modelled as a function of its rows, its drafted tokens, and whether anything is
drafted (attention, sampling and bookkeeping may then take another path). A step of any number of
rows is therefore evidence for all others. The batches of a serving engine change at every step, and
the model needs only a few dozen steps.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ngramspec.costs.curve import assumed_cost
from ngramspec.costs.learned import Comparison, Corrections, Float64
from ngramspec.draft import Float32

Int64 = NDArray[np.int64]
Times = float | NDArray[np.floating]  # of one step, or of several

OCTAVES = 13  # doublings of the number of positions that have a separate correction

# On a CPU: relative cost that a row and a drafted token add to a step of one row without a draft,
# and the standard deviation of the log cost of drafting anything. Measured in float32: 0.057 and
# 0.035 (vLLM, SmolLM2-135M, one core). bfloat16 is guessed. "quantized" is for llama.cpp, where
# the costs are 0.1 to 0.7, depending on the type of the weights.
CPU_ADDED_COSTS = {
    "float32": (0.06, 0.04, 0.01),
    "bfloat16": (0.04, 0.03, 0.01),
    "quantized": (0.3, 0.2, 0.05),
}

# Prior standard deviations of the logarithm of a step's time. Not tuned.
CPU_OCTAVE_SPREAD = 0.01  # of each doubling of the positions; a CPU's steps are nearly linear
CPU_ADDED_COST_SPREAD = 0.7  # of the log cost that a row or a drafted token adds on a CPU
# On a GPU: common to all doublings; of each doubling independently; of drafting anything.
GPU_SPREADS = 0.5, 0.1, 0.05
DRAFTED_SPREAD = 0.1  # on a GPU, of the share of drafted positions

FORGOTTEN_PER_STEP = 1 / 8192  # share of the knowledge that is forgotten at each step; not tuned
# See Corrections. With 0.1, stalls and changes of the machine's speed doubled the uncertainty of
# the cost of drafted tokens, in simulated steps of which a tenth stalled.
REVIVED_SHARE = 0.01
FIRST_REVIVED_SHARE = 1.0  # at the first step; divided by the number of steps afterwards
# Posterior deviations added to the believed costs. They are halved every CAUTION_HALVING_STEPS,
# because what is never drafted is never measured. Not tuned.
CAUTION_DEVIATIONS = {"cpu": 0.0, "gpu": 0.5}
CAUTION_HALVING_STEPS = 64


class EngineStepCosts:
    """The costs of steps for all numbers of rows. Not thread-safe.

    Learning from a step takes about 5 microseconds, reading a curve about 20.

    Args:
        device: "cpu" or "gpu".
        dtype: name of the model's dtype; on a CPU also "quantized".
        most: maximum number of positions of a step; larger steps count as this large.

    Attributes:
        steps: number of steps learned from.
    """

    def __init__(self, device: str, dtype: str, most: int) -> None:
        self.steps = 0
        self._most = most
        self._assumed: _Linear | _Table = _Linear(dtype) if device == "cpu" else _Table(most, dtype)
        self._basis = _hats(most + 1)
        self._model = Corrections(
            _covariance(*self._assumed.spreads), FORGOTTEN_PER_STEP, FIRST_REVIVED_SHARE
        )
        self._before = Comparison()
        self._caution = CAUTION_DEVIATIONS[device]

    def record_time(self, rows: int, drafted: int, seconds: float) -> float:
        """Learn from the time of a step.

        Returns:
            The probability that the time was not affected by a change of the machine's speed.
        """
        self.steps += 1
        self._model.revived = max(REVIVED_SHARE, FIRST_REVIVED_SHARE / self.steps)
        rows = min(rows, self._most)
        drafted = min(drafted, self._most - rows)
        log, own = self._assumed.steps(rows, drafted, self._model.mean[OCTAVES + 1 :])
        features = _octaves(rows + drafted)
        if drafted:
            features.append((OCTAVES, 1.0))
        # The assumed form is linearized in its coefficients at their current estimates (an extended
        # Kalman filter). The residual is relative to coefficients of 0.
        residual = math.log(max(seconds, 1e-9)) - float(log)
        for at, value in enumerate(map(float, own), OCTAVES + 1):
            features.append((at, value))
            residual += value * float(self._model.mean[at])
        return self._model.learn(self._before, features, residual)

    def curve(self, rows: int, most: int) -> Float32:
        """Relative costs of steps of ``rows`` rows, non-decreasing.

        At first, uncertain costs are overestimated.

        Args:
            rows: number of rows of the step, >= 1.
            most: maximum number of drafted tokens.

        Returns:
            float32 (n,): [d] is the cost of a step with d drafted tokens relative to one without;
            n is most + 1, or less if a step has fewer positions.
        """
        rows = min(rows, self._most)
        most = min(most, self._most - rows)
        logs, features = self._steps(rows, np.arange(most + 1))
        logs -= logs[0]
        if self._caution and self.steps < 8 * CAUTION_HALVING_STEPS:
            caution = self._caution * 0.5 ** (self.steps / CAUTION_HALVING_STEPS)
            features -= features[0]
            variances = np.einsum("ij,ij->i", features @ self._model.covariance, features)
            logs += caution * np.sqrt(np.maximum(variances, 0.0))
        curve: Float32 = np.maximum.accumulate(np.exp(logs)).astype(np.float32)
        return curve

    def _steps(self, rows: int, drafted: Int64) -> tuple[Float64, Float64]:
        """Estimate steps of ``rows`` rows with ``drafted`` tokens, int64 (n,).

        Returned are the logarithms of their times in an arbitrary unit, float64 (n,), and their
        derivatives by the coefficients, float64 (n, coefficients).
        """
        mean, own = self._model.mean, OCTAVES + 1
        logs, assumed = self._assumed.steps(rows, drafted, mean[own:])
        features = np.empty((len(drafted), len(mean)))
        features[:, :OCTAVES] = self._basis[rows + drafted]
        features[:, OCTAVES] = drafted > 0
        features[:, own:] = np.stack(assumed, axis=1)
        return logs + features[:, :own] @ mean[:own], features


class _Linear:
    """The assumed form of step times on a CPU: each row and each drafted token adds a constant.

    Attributes:
        spreads: prior standard deviations, the arguments of ``_covariance``.
    """

    def __init__(self, dtype: str) -> None:
        self._row, self._token, drafted = CPU_ADDED_COSTS.get(dtype, CPU_ADDED_COSTS["float32"])
        added = CPU_ADDED_COST_SPREAD
        self.spreads: tuple[float, ...] = (0.0, CPU_OCTAVE_SPREAD, drafted, added, added)

    def steps(self, rows: int, drafted: int | Int64, own: Float64) -> tuple[Times, list[Times]]:
        """Logarithms of times, and their derivative by each of ``own``.

        All are float64 (n,), or numbers for one step, because arrays are slow while caches are
        cold. ``own`` are the coefficients of this form. They start at 0.
        """
        row = self._row * math.exp(own[0]) * (rows - 1)
        tokens = self._token * math.exp(own[1]) * drafted
        times = 1.0 + (row + tokens)
        return np.log(times), [row / times, tokens / times]


class _Table:
    """As ``_Linear``, for a GPU: ``assumed_cost``, and a correction for the drafted share."""

    spreads: tuple[float, ...] = (*GPU_SPREADS, DRAFTED_SPREAD)

    def __init__(self, most: int, dtype: str) -> None:
        self._known = np.log(assumed_cost("gpu", most, dtype=dtype)).astype(np.float64)

    def steps(self, rows: int, drafted: int | Int64, own: Float64) -> tuple[Times, list[Times]]:
        share = drafted / (rows + drafted)
        return self._known[rows + drafted] + own[0] * share, [share]


def _octaves(positions: int) -> list[tuple[int, float]]:
    """(octave, weight of its correction) for a number of positions; a sparse row of ``_hats``."""
    log = min(math.log2(positions), OCTAVES)
    below = math.floor(log)
    hats = (below - 1, 1.0 - (log - below)), (below, log - below)
    return [(at, share) for at, share in hats if 0 <= at < OCTAVES and share > 0]


def _hats(size: int) -> Float64:
    """Weights of the octaves' corrections for 0..size - 1 positions, float64 (size, OCTAVES).

    Linear in the logarithm of the positions between 2, 4, 8 ...; 0 for one position.
    """
    logs = np.log2(np.maximum(np.arange(size), 1)).clip(max=OCTAVES)
    hats: Float64 = np.maximum(1.0 - np.abs(logs[:, None] - np.arange(1, OCTAVES + 1)), 0.0)
    return hats


def _covariance(trend: float, wider: float, drafted: float, *own: float) -> Float64:
    """Prior covariance of all corrections, float64 (OCTAVES + 1 + own, OCTAVES + 1 + own)."""
    octaves = np.arange(1.0, OCTAVES + 1)
    nearer = np.minimum(octaves[:, None], octaves[None, :])
    covariance = np.diag(np.square((0.0,) * OCTAVES + (drafted, *own)))
    covariance[:OCTAVES, :OCTAVES] = trend**2 * np.outer(octaves, octaves) + wider**2 * nearer
    return covariance
