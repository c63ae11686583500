"""Cost curves of replays: the cost of a forward of n positions relative to one position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ngramspec.costs.processors import GPU_COSTS
from ngramspec.draft import Float32

# Widths and costs by which drafters are compared. "cpu": SmolLM2-135M in bfloat16 on two cores of
# an Intel Xeon with AMX. "gpu": assumed, of a 7-8B model on one data-centre GPU.
POSITIONS = tuple(GPU_COSTS)
COSTS = {
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    "gpu": tuple(GPU_COSTS.values()),
}


def cost_curve(name: str, gamma_max: int) -> Float32:
    """The ``cost`` argument of ``DraftSession.propose``, float32 (gamma_max + 2,).

    It is linear between the given positions, and constant after the last; index 0 is unused. The
    name is "cpu", "gpu", or a JSON file with ``{"positions": [1, ...], "cost": [1.0, ...]}``; a
    ValueError is raised if it has something else.
    """
    at, cost = (POSITIONS, COSTS[name]) if name in COSTS else _read(Path(name))
    return np.interp(np.arange(gamma_max + 2), at, cost).astype(np.float32)


def _read(path: Path) -> tuple[list[float], list[float]]:
    fields = json.loads(path.read_text(encoding="utf-8"))
    lists = [fields.get(key) if isinstance(fields, dict) else None for key in ("positions", "cost")]
    at, cost = (each if isinstance(each, list) else [] for each in lists)
    numbers = all(isinstance(each, int | float) for each in (*at, *cost))
    if not (numbers and at and len(at) == len(cost) and at[0] == 1 and min(cost) > 0):
        raise ValueError(
            f"{path}: positions must begin with 1, and cost must have a value > 0 for each of them"
        )
    if sorted(set(at)) != at:
        raise ValueError(f"{path}: positions must rise, got {at}")
    return at, cost
