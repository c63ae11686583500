"""Costs of an engine's steps, by rows and by the tokens drafted in the whole batch.

Each drafted token adds a position to a step. Its cost depends on the number of rows: on a GPU
positions are nearly free up to some hundreds, on a CPU each one adds compute. So there is one curve
per number of rows, over the drafted tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ngramspec.costs.curve import extended
from ngramspec.costs.engine_steps import EngineStepCosts
from ngramspec.draft import Float32

# The limits are not tuned.
MAX_DRAFTED_TOKENS = 1024  # in a batch; beyond, the curve's last value is used
MAX_STEP_POSITIONS = 4096
# A curve is computed again after (steps so far / REFRESH_DIVISOR) steps, within this maximum.
REFRESH_DIVISOR, MAX_STEPS_BETWEEN_REFRESHES = 24, 64


class EngineCosts(Protocol):
    """The step costs that ``Rows`` uses. Not thread-safe."""

    def curve(self, rows: int) -> Float32 | None:
        """Relative costs of steps of ``rows`` rows, or None if this step must have no draft.

        Returns:
            float32 (n,), n >= 1: [d] is the cost of a step with d drafted tokens over all rows,
            relative to a step without a draft, so [0] is 1.
        """

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        """Record the time of a step of ``rows`` rows and ``drafted`` tokens."""


class GivenEngineCosts:
    """Curves from a table.

    Args:
        table: number of rows -> drafted tokens in all rows -> time of the step relative to a step
            of equally many rows without a draft. Interpolated and extrapolated linearly. Other
            numbers of rows use the nearest entry. Numbers may be strings, as in JSON.

    Raises:
        ValueError: an entry is wrong. The message names it.

    Example:
        >>> GivenEngineCosts({1: {4: 1.25, 8: 1.75}}).curve(2)[[0, 4, 8, 12]].tolist()
        [1.0, 1.25, 1.75, 2.25]
    """

    def __init__(self, table: Mapping[Any, Mapping[Any, float]]) -> None:
        if not table:
            raise ValueError("costs must name at least one number of rows, got none")
        self._curves = {int(rows): _given(int(rows), points) for rows, points in table.items()}

    def curve(self, rows: int) -> Float32 | None:
        return self._curves[min(self._curves, key=lambda known: (abs(known - rows), known))]

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        return None


def _given(rows: int, points: Mapping[Any, float]) -> Float32:
    if rows < 1:
        raise ValueError(f"costs: rows must be >= 1, got {rows}")
    known = sorted((int(drafted), float(cost)) for drafted, cost in points.items())
    for drafted, cost in known:
        if drafted < 1 or not 0 < cost < float("inf"):
            raise ValueError(
                f"costs of {rows} rows: drafted must be >= 1 and its cost > 0 and finite,"
                f" got {drafted}: {cost}"
            )
    if not known:
        raise ValueError(f"costs of {rows} rows must have at least one entry, got none")
    curve = extended(np.arange(MAX_DRAFTED_TOKENS + 1), {0: 1.0, **dict(known)})
    given: Float32 = curve.astype(np.float32)
    return given


class LearnedEngineCosts:
    """Curves learned from the engine's own steps: see ``EngineStepCosts``.

    Args:
        k: maximum number of drafted tokens of a row.
        device: "cpu" or "gpu".
        dtype: name of the model's dtype.
    """

    # A step without a draft is run to be timed after MIN_STEPS_WITHOUT_PLAIN timed steps plus half
    # of all timed steps, and after MAX_STEPS_WITHOUT_PLAIN at most. Not tuned.
    MIN_STEPS_WITHOUT_PLAIN = 2
    MAX_STEPS_WITHOUT_PLAIN = 128
    MAX_UNTIMED_PLAIN_STEPS = 6  # such steps in a row that could not be timed
    MARGIN = 0.02  # by which a draft's expected gain must exceed its cost

    def __init__(self, k: int, device: str = "gpu", dtype: str = "bfloat16") -> None:
        self._k = k
        self._costs = EngineStepCosts(device, dtype, MAX_STEP_POSITIONS)
        self._plain = -self.MIN_STEPS_WITHOUT_PLAIN  # number of the last timed step without a draft
        self._waits = 0
        self._curves: dict[int, tuple[int, Float32]] = {}  # rows -> (step, curve)

    def curve(self, rows: int) -> Float32 | None:
        steps = self._costs.steps
        wait = min(self.MAX_STEPS_WITHOUT_PLAIN, self.MIN_STEPS_WITHOUT_PLAIN + steps // 2)
        if steps - self._plain >= wait and self._waits < self.MAX_UNTIMED_PLAIN_STEPS:
            self._waits += 1
            return None
        known = self._curves.get(rows)
        fresh = min(steps // REFRESH_DIVISOR, MAX_STEPS_BETWEEN_REFRESHES)
        if known is None or steps - known[0] > fresh:
            curve = self._costs.curve(rows, min(rows * self._k, MAX_DRAFTED_TOKENS))
            curve[1:] *= np.float32(1.0 + self.MARGIN)
            known = self._curves[rows] = (steps, curve)
        return known[1]

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        self._costs.record_time(rows, drafted, seconds)
        if not drafted:
            self._plain, self._waits = self._costs.steps, 0
