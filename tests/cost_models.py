"""What the tests of costs share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from conftest import tiny_llama

from ngramspec.costs.model import ForwardKind, model_of
from ngramspec.costs.processors import AMX
from ngramspec.costs.steps import StepCosts

KIND = ForwardKind(AMX, "float32")
IDS = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def fed(costs: StepCosts, seconds: Mapping[int, float], times: int = 25, tree: bool = False):
    """Let steps of these widths take these times, in turn; the first one is not counted."""
    costs.plain(), costs.plain()
    for _ in range(times):
        for width, each in seconds.items():
            costs.record_time(width, each, tree and width > 1)
    return costs


def step_costs(model=None, kind=KIND, limit=65, saved=None, **more) -> StepCosts:
    return StepCosts(model_of(model or tiny_llama(), kind, saved), limit, **more)
