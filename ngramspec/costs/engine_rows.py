"""What a step of an engine costs, by its rows and by the tokens drafted in all of them.

A step of R rows takes as long as it takes; each drafted token adds a position. How much that is
depends on R: on a GPU positions are nearly free up to some hundreds, on a CPU every one is paid.
So there is a curve for each number of rows, over the drafted tokens of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ngramspec.costs.engine_steps import EngineStepCosts
from ngramspec.draft import Float32

MOST_DRAFTED = 1024  # tokens in a batch; the curve's last value holds behind
MOST_POSITIONS = 4096  # of a step
OFTEN = 24, 64  # a curve is read anew after this part of all steps, and after so many at most


class EngineCosts(Protocol):
    """The costs that ``Rows`` goes by. One thread at a time."""

    def curve(self, rows: int) -> Float32 | None:
        """float32 (n,): [d] of a step of ``rows`` rows and d drafted tokens, in all, n >= 1.

        In steps without a draft, so [0] is 1. None: nothing is to be drafted in this step.
        """

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        """A step of ``rows`` rows and ``drafted`` tokens took so long."""


class GivenEngineCosts:
    """Curves from a table.

    Args:
        table: number of rows -> drafted tokens in all rows -> time of the step, in steps of as
            many rows without a draft. Linear in between and behind; for other numbers of rows the
            nearest one's.

    Raises:
        ValueError: which entry is wrong.

    Example:
        >>> GivenEngineCosts({1: {4: 1.25, 8: 1.75}}).curve(2)[[0, 4, 8, 12]].tolist()
        [1.0, 1.25, 1.75, 2.25]
    """

    def __init__(self, table: Mapping[int, Mapping[int, float]]) -> None:
        if not table:
            raise ValueError("costs must name at least one number of rows, got none")
        self._curves = {int(rows): _given(int(rows), points) for rows, points in table.items()}

    def curve(self, rows: int) -> Float32 | None:
        return self._curves[min(self._curves, key=lambda known: (abs(known - rows), known))]

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        return None


def _given(rows: int, points: Mapping[int, float]) -> Float32:
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
    x, y = (np.array(each) for each in zip((0, 1.0), *known, strict=True))
    at = np.arange(MOST_DRAFTED + 1)
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
    curve: Float32 = (np.interp(at, x, y) + slope * np.maximum(at - x[-1], 0)).astype(np.float32)
    return curve


class LearnedEngineCosts:
    """Curves learned from the engine's own steps: see ``EngineStepCosts``.

    Args:
        k: most drafted tokens of a row.
        device: "cpu" or "gpu".
        dtype: of the model, by name.
    """

    STALE = 128  # timed steps after which one without a draft is run, to be timed: at first
    SOON = 2  # so many, and half as many as there were so far;
    PATIENCE = 6  # or so many in a row, if they cannot be timed
    MARGIN = 0.02  # by which a draft must be worth more than it costs

    def __init__(self, k: int, device: str = "gpu", dtype: str = "bfloat16") -> None:
        self._k = k
        self._costs = EngineStepCosts(device, dtype, MOST_POSITIONS)
        self._plain = -self.SOON  # the timed step without a draft that was the last
        self._waits = 0
        self._curves: dict[int, tuple[int, Float32]] = {}  # rows -> (step, curve)

    def curve(self, rows: int) -> Float32 | None:
        steps = self._costs.steps
        if (
            steps - self._plain >= min(self.STALE, self.SOON + steps // 2)
            and self._waits < self.PATIENCE
        ):
            self._waits += 1
            return None
        known = self._curves.get(rows)
        if known is None or steps - known[0] > min(steps // OFTEN[0], OFTEN[1]):
            curve = self._costs.curve(rows, min(rows * self._k, MOST_DRAFTED))
            curve[1:] *= np.float32(1.0 + self.MARGIN)
            known = self._curves[rows] = (steps, curve)
        return known[1]

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        self._costs.record_time(rows, drafted, seconds)
        if not drafted:
            self._plain, self._waits = self._costs.steps, 0
