"""The costs of an engine's steps, given or learned."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ngramspec.costs.model import CostModel
from ngramspec.costs.processors import (
    ENGINE_ROW_COSTS,
    ENGINE_TOKEN_COUNT,
    FLOAT32,
    GPU,
    MAX_ENGINE_TOKENS,
    initial_costs,
)
from ngramspec.costs.steps import MARGIN, StepCosts
from ngramspec.draft import Float32

CPU_SPREAD, GPU_SPREAD = 0.1, 4.0  # factors of the prior standard deviations of a CostModel


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


class LearnedEngineCosts:
    """Costs learned from the engine's own steps. A step improves the costs of any number of rows.

    Args:
        k: maximum number of drafted tokens of a row.
        device: "cpu" or "gpu".
        dtype: name of the model's dtype; on a CPU also "quantized".
    """

    def __init__(self, k: int, device: str = "gpu", dtype: str = "bfloat16") -> None:
        self._k = k
        self.steps = StepCosts(engine_model(device, dtype), 1, packed=True, pads=False)

    def curve(self, rows: int) -> Float32 | None:
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
        self.steps.learn(seconds, rows, rows + drafted)


def engine_model(device: str, dtype: str) -> CostModel:
    """A new cost model of an engine's steps; see ``LearnedEngineCosts``."""
    if device != "cpu":
        return CostModel(initial_costs(GPU, dtype), spread=GPU_SPREAD)
    row = ENGINE_ROW_COSTS.get(dtype, ENGINE_ROW_COSTS[FLOAT32])
    return CostModel({1: 1.0, 2: 1.0 + row}, ENGINE_TOKEN_COUNT, CPU_SPREAD)
