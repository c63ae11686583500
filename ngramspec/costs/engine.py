"""The costs of an engine's steps, given or learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ngramspec.costs.model import CostModel
from ngramspec.costs.processors import (
    ENGINE_ROW_COSTS,
    ENGINE_TOKEN_COUNT,
    FLOAT32,
    GPU,
    MAX_ENGINE_TOKENS,
    extended,
    initial_costs,
)
from ngramspec.costs.steps import MARGIN, StepCosts
from ngramspec.draft import Float32

CPU_SPREAD, GPU_SPREAD = 0.1, 4.0  # factors of the prior standard deviations of a CostModel


class LearnedEngineCosts:
    """Costs learned from the engine's own steps. A step improves the costs of any number of rows.

    Args:
        k: maximum number of drafted tokens of a row.
        device: "cpu" or "gpu".
        dtype: name of the model's dtype; on a CPU also "quantized".
    """

    def __init__(self, k: int, device: str = "gpu", dtype: str = "bfloat16") -> None:
        self._k = k
        if device == "cpu":
            row = ENGINE_ROW_COSTS.get(dtype, ENGINE_ROW_COSTS[FLOAT32])
            model = CostModel({1: 1.0, 2: 1.0 + row}, ENGINE_TOKEN_COUNT, CPU_SPREAD)
        else:
            model = CostModel(initial_costs(GPU, dtype), spread=GPU_SPREAD)
        self.steps = StepCosts(model, 1, packed=True)

    def curve(self, rows: int) -> Float32 | None:
        """Relative costs of steps of ``rows`` rows, or None if this step must have no draft.

        They are float32 (n,), n >= 1: [d] is the cost of a step with d drafted tokens over all
        rows, relative to a step without a draft, so [0] is 1.
        """
        if self.steps.plain():
            return None
        curve = self.relative(rows, min(rows * self._k, MAX_ENGINE_TOKENS))
        curve[1:] *= np.float32(1.0 + MARGIN)
        return curve

    def relative(self, rows: int, drafted: int) -> Float32:
        """Costs of steps with 0..drafted tokens, non-decreasing, relative to one without."""
        logs = self.steps.model.logs(rows, rows + np.arange(drafted + 1))
        curve: Float32 = np.maximum.accumulate(np.exp(logs - logs[0])).astype(np.float32)
        return curve

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        """Record the time of a step of ``rows`` rows and ``drafted`` tokens."""
        self.steps.learn(seconds, rows, rows + drafted)


class GivenEngineCosts:
    """An engine's costs from a table.

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
        """See ``LearnedEngineCosts``."""
        return self._curves[min(self._curves, key=lambda known: (abs(known - rows), known))]

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        """Ignored."""


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
    curve = np.interp(np.arange(MAX_ENGINE_TOKENS + 1), *extended({0: 1.0, **dict(known)}))
    given: Float32 = curve.astype(np.float32)
    return given


EngineCosts = GivenEngineCosts | LearnedEngineCosts  # not thread-safe
