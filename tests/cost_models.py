"""What the tests of costs share."""

from __future__ import annotations

import torch
from conftest import tiny_llama

from ngramspec.draft_length.cost_curve import CostCurve, ForwardKind
from ngramspec.draft_length.step_cost import StepCostTracker

KIND = ForwardKind("cpu", "float32")
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def fed(curve: CostCurve, seconds: dict[int, float], times: int = 9) -> CostCurve:
    for _ in range(times):
        for width, each in seconds.items():
            curve.add(width, each)
    return curve


def tracker(model=None, tokens=200, **more) -> StepCostTracker:
    return StepCostTracker(model or tiny_llama(), KIND, 65, tokens, **more)
