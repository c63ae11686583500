"""What a forward of n positions costs, in forwards of one position."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ngramspec.draft import Float32

POSITIONS = (1, 2, 3, 5, 8, 11, 16, 24, 32, 48, 64, 128)
CURVES = {
    # SmolLM2-135M, bfloat16, two CPU cores
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    # assumed for a model of 7-8 billion parameters on one data-centre GPU
    "gpu": (1, 1, 1, 1.0, 1.0, 1.0, 1.01, 1.02, 1.03, 1.05, 1.07, 1.15),
}


def cost_curve(name: str, gamma_max: int) -> Float32:
    """A curve as ``DraftSession.propose`` takes it.

    Args:
        name: "cpu", "gpu", or a JSON file with ``{"positions": [1, ...], "cost": [1.0, ...]}``.
        gamma_max: most tokens in a draft.

    Returns:
        float32 (gamma_max + 2,): linear between the given positions, constant behind the last;
        index 0 is unused.

    Raises:
        OSError, ValueError: the file cannot be read, or does not say what a forward costs.
    """
    at, cost = (POSITIONS, CURVES[name]) if name in CURVES else _read(Path(name))
    return np.interp(np.arange(gamma_max + 2), at, cost).astype(np.float32)


def _read(path: Path) -> tuple[list[float], list[float]]:
    fields = json.loads(path.read_text(encoding="utf-8"))
    lists = [fields.get(key) if isinstance(fields, dict) else None for key in ("positions", "cost")]
    at, cost = (each if isinstance(each, list) else [] for each in lists)
    numbers = all(isinstance(each, int | float) for each in (*at, *cost))
    if not (numbers and at and len(at) == len(cost) and at[0] == 1 and min(cost) > 0):
        raise ValueError(f"{path}: needs as many positive costs as positions, the first for 1")
    if sorted(set(at)) != at:
        raise ValueError(f"{path}: positions must rise, got {at}")
    return at, cost
