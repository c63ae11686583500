"""How many tokens to draft in the next step."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ngramspec.draft import Float32
from ngramspec.errors import check_int

# What a forward of n positions costs, in forwards of one: linear between these, and on.
POSITIONS = (1, 2, 3, 5, 8, 11, 16, 24, 32, 48, 64, 128)
COSTS = {
    # measured: SmolLM2-135M, bfloat16, two CPU cores
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    # assumed: a model of 7-8 billion parameters on one data-centre GPU
    "gpu": (1, 1, 1, 1.0, 1.0, 1.0, 1.01, 1.02, 1.03, 1.05, 1.07, 1.15),
}
BATCH_SURCHARGE = 0.2  # of a second position in each row: seen on the same CPU, batches 2 to 16


class GammaController(Protocol):
    """One generation's choice of gamma. One thread at a time."""

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        """What to ask the drafter for.

        Args:
            estimates: whether it ends its drafts where the cost says.

        Returns:
            (gamma >= 1, cost as ``DraftSession.propose`` takes it, or None).
        """

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a step that drafted ``drafted`` >= 1 tokens."""


class FixedGamma:
    """The same gamma at every step (Leviathan et al. 2023, Algorithm 1)."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        return self._gamma, None

    def observe(self, drafted: int, accepted: int) -> None:
        return None


class HeuristicGamma:
    """Doubles when a whole draft was accepted, else goes half way to what was accepted.

    A draft shorter than asked for that was accepted whole says nothing about longer ones, and
    changes nothing. Bounded by ``LOWEST`` (or gamma_max, if that is less) and gamma_max: below
    LOWEST a forward hardly gets cheaper.
    """

    FIRST = 8
    LOWEST = 6

    def __init__(self, gamma_max: int) -> None:
        self._max = gamma_max
        self._gamma = min(self.FIRST, gamma_max)

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        return self._gamma, None

    def observe(self, drafted: int, accepted: int) -> None:
        if accepted < drafted:
            wanted = (self._gamma + accepted + 1) // 2
        elif drafted >= self._gamma:
            wanted = 2 * self._gamma
        else:
            return
        self._gamma = min(max(wanted, self.LOWEST), self._max)


class CostGamma:
    """By expected tokens per cost where the drafter estimates them, else the heuristic.

    Args:
        gamma_max: most tokens to ask for.
        cost: float32 (gamma_max + 2,), cost[n] of a forward of n positions.
    """

    def __init__(self, gamma_max: int, cost: Float32) -> None:
        self._max = gamma_max
        self._cost = cost
        self._heuristic = HeuristicGamma(gamma_max)

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        return (self._max, self._cost) if estimates else self._heuristic.plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        self._heuristic.observe(drafted, accepted)


def assumed_cost(kind: str, gamma_max: int, rows: int = 1) -> Float32:
    """A cost curve from ``COSTS``, for a batch whose rows all have so many positions.

    Args:
        kind: "cpu" or "gpu".
        gamma_max: most tokens in a draft.
        rows: of the batch; cost[n] is that of n positions in each, in forwards of one in each.

    Returns:
        float32 (gamma_max + 2,), rising on behind the last known position as up to it.
    """
    points = (*POSITIONS, 2 * POSITIONS[-1])
    known = COSTS[kind]
    costs = (*known, known[-1] + 2 * (known[-1] - known[-2]))
    per_position = (costs[-1] - costs[-2]) / (points[-1] - points[-2])
    positions = rows * np.arange(gamma_max + 2)
    curve = np.interp(positions, points, costs)
    curve += per_position * np.maximum(positions - points[-1], 0)
    cost: Float32 = (curve / curve[1]).astype(np.float32)
    if rows > 1:
        cost[2:] += BATCH_SURCHARGE
    return cost


def check_gamma(gamma: int | str, gamma_max: int) -> int | str:
    """Return a valid ``gamma`` argument: an integer in 1..gamma_max, "heuristic" or "auto"."""
    if isinstance(gamma, str):
        if gamma not in ("auto", "heuristic"):
            raise ValueError(f"gamma must be an integer, 'auto' or 'heuristic', got {gamma!r}")
        return gamma
    return check_int("gamma", gamma, 1, gamma_max)


def make_controller(
    gamma: int | str, gamma_max: int, kind: str = "cpu", rows: int = 1
) -> GammaController:
    """A controller for one row of a generation.

    Args:
        gamma: an integer; "heuristic"; or "auto", by an assumed cost until it is measured.
        gamma_max: most tokens to ask for.
        kind: of machine, "cpu" or "gpu".
        rows: of the batch.
    """
    if isinstance(gamma, int):
        return FixedGamma(gamma)
    if gamma == "heuristic":
        return HeuristicGamma(gamma_max)
    return CostGamma(gamma_max, assumed_cost(kind, gamma_max, rows))
