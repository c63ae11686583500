"""What the tests of costs share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from conftest import tiny_llama

from ngramspec.costs.curve import ForwardKind
from ngramspec.costs.processors import AMX
from ngramspec.costs.tracker import StepCostTracker

KIND = ForwardKind(AMX, "float32")
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def fed(costs: StepCostTracker, seconds: Mapping[int, float], times: int = 25, tree: bool = False):
    """Let steps of these widths take these times, in turn; the first one is not counted."""
    costs.plain(), costs.plain()
    for _ in range(times):
        for width, each in seconds.items():
            costs.record_time(width, each, tree and width > 1)
    return costs


def tracker(model=None, tokens=200, kind=KIND, **more) -> StepCostTracker:
    return StepCostTracker(model or tiny_llama(), kind, 65, tokens, **more)
