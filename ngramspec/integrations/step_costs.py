"""What an engine's steps cost, learned from their times for all numbers of rows at once.

A step's time is taken to depend on its positions, those of rows and of drafted tokens, on the share
of them that is drafted, and on whether anything is: attention, sampling and bookkeeping may take
another path then. So a step of any number of rows says something of all others: a serving
engine, whose batches change at every step, is known after a few dozen steps.
"""

from __future__ import annotations

import math

import numpy as np

from ngramspec.draft import Float32
from ngramspec.draft_length.cost_curve import assumed_cost
from ngramspec.draft_length.learned_costs import Comparison, Corrections, Float64

OCTAVES = 13  # doublings of the positions with a correction of their own

# Of a CPU: what a row, and a drafted token, add to a step of one row without a draft. Measured in
# float32: 0.057 and 0.035 (vLLM, SmolLM2-135M, one core). In bfloat16 they are guessed.
CPU = {"float32": (0.06, 0.04), "bfloat16": (0.04, 0.03)}

# Standard deviations, of the logarithm of a step's time, before anything is measured: of each
# doubling of the positions, the same for all of them; of each by itself; of having drafted
# anything; of positions that are all drafted. A CPU's steps are known to be nearly linear.
SPREADS = {"cpu": (0.2, 0.01, 0.01, 0.1), "gpu": (0.5, 0.1, 0.05, 0.1)}
FADE = 1 / 8192  # of what is known, forgotten at each step
CAUTION = {"cpu": 0.0, "gpu": 0.5}  # so many of them are added to what is believed,
BOLDER = 64  # and after so many steps half as many: what is never drafted is never measured


class StepCosts:
    """The costs of steps of all numbers of rows. One thread at a time.

    Learning from a step and reading a curve each take some 20 microseconds.

    Args:
        device: "cpu" or "gpu".
        dtype: of the model, by name.
        most: positions of a step whose costs are told apart.

    Attributes:
        steps: that were learned from.
    """

    def __init__(self, device: str, dtype: str, most: int) -> None:
        self.steps = 0
        self._most = most
        self._row, self._token = CPU.get(dtype, CPU["float32"])
        self._known = None if device == "cpu" else np.log(assumed_cost("gpu", most, dtype=dtype))
        self._basis = _hats(most + 1)
        self._model = Corrections(_covariance(*SPREADS[device]), FADE)
        self._before = Comparison()
        self._caution = CAUTION[device]

    def took(self, rows: int, drafted: int, seconds: float) -> float:
        """Learn from the time of a step.

        Returns:
            the probability that it was not changed by a swing of the machine's speed.
        """
        self.steps += 1
        rows = min(rows, self._most)
        drafted = min(drafted, self._most - rows)
        share = drafted / (rows + drafted)
        features = np.empty(OCTAVES + 2)
        features[:OCTAVES] = self._basis[rows + drafted]
        features[-2:] = drafted > 0, share
        if self._known is None:
            assumed = math.log(1.0 + self._row * (rows - 1) + self._token * drafted)
        else:
            assumed = float(self._known[rows + drafted])
        return self._model.learn(self._before, features, math.log(max(seconds, 1e-9)) - assumed)

    def curve(self, rows: int, most: int) -> Float32:
        """float32 (n,), [d] a step of d drafted tokens, in steps without; it never falls.

        What is hardly known counts as dearer than it probably is, at first.

        Args:
            rows: of the step, >= 1.
            most: drafted tokens; n is most + 1, or less where steps have no more positions.
        """
        rows = min(rows, self._most)
        most = min(most, self._most - rows)
        assumed = self._assumed(rows, most)
        more = self._more(rows, most)
        logs = assumed - assumed[0] + more @ self._model.mean
        if self._caution and self.steps < 8 * BOLDER:
            caution = self._caution * 0.5 ** (self.steps / BOLDER)
            logs += caution * self._model.deviations(more)
        curve: Float32 = np.maximum.accumulate(np.exp(logs)).astype(np.float32)
        return curve

    def _more(self, rows: int, most: int) -> Float64:
        """Features of steps with 0..most drafted tokens, less those of one without."""
        drafted = np.arange(most + 1)
        more = np.empty((most + 1, OCTAVES + 2))
        np.subtract(self._basis[rows : rows + most + 1], self._basis[rows], out=more[:, :OCTAVES])
        more[:, -2] = drafted > 0
        more[:, -1] = drafted / (rows + drafted)
        return more

    def _assumed(self, rows: int, most: int) -> Float64:
        """The logarithm of the times of steps with 0..most drafted tokens, in any unit."""
        if self._known is not None:
            return self._known[rows : rows + most + 1]
        logs: Float64 = np.log(1.0 + self._row * (rows - 1) + self._token * np.arange(most + 1))
        return logs


def _hats(size: int) -> Float64:
    """How much of each octave's correction numbers of positions have, float64 (size, OCTAVES).

    Linear in the logarithm of the positions between 2, 4, 8 ...; 0 for a single one.
    """
    logs = np.log2(np.maximum(np.arange(size), 1)).clip(max=OCTAVES)
    hats: Float64 = np.maximum(1.0 - np.abs(logs[:, None] - np.arange(1, OCTAVES + 1)), 0.0)
    return hats


def _covariance(trend: float, wider: float, drafted: float, share: float) -> Float64:
    """Of all corrections before anything is measured."""
    octaves = np.arange(1.0, OCTAVES + 1)
    nearer = np.minimum(octaves[:, None], octaves[None, :])
    covariance = np.zeros((OCTAVES + 2, OCTAVES + 2))
    covariance[:-2, :-2] = trend**2 * np.outer(octaves, octaves) + wider**2 * nearer
    covariance[-2, -2], covariance[-1, -1] = drafted**2, share**2
    return covariance
