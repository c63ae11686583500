"""How many tokens to draft in the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from ngramspec.draft import Float32
from ngramspec.errors import check_int

# What a forward of n positions costs, in forwards of one: linear between these, and on.
POSITIONS = (1, 2, 3, 5, 8, 11, 16, 24, 32, 48, 64, 128)
COSTS = {
    # the two that drafters are compared by; measured: SmolLM2-135M, bfloat16, two CPU cores
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    # assumed: a model of 7-8 billion parameters on one data-centre GPU
    "gpu": (1, 1, 1, 1.0, 1.0, 1.0, 1.01, 1.02, 1.03, 1.05, 1.07, 1.15),
    # what generations begin with: the same model and cores, measured beside plain steps
    "cpu bfloat16": (1, 1.03, 1.04, 1.05, 1.07, 1.10, 1.14, 1.21, 1.29, 1.52, 1.65, 3.0),
    "cpu float32": (1, 1.05, 1.12, 1.5, 1.75, 2.1, 1.97, 2.25, 2.5, 3.0, 3.4, 6.2),
}
BATCH_SURCHARGE = 0.2  # of a second position in each row: seen on the same CPU, batches 2 to 16


class GammaController(Protocol):
    """One generation's choice of gamma. One thread at a time."""

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        """What to ask the drafter for.

        Args:
            estimates: whether it ends its drafts where the cost says.

        Returns:
            (gamma, 0 for no draft; cost as ``DraftSession.propose`` takes it, or None).
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

    A drafter without estimates whose drafts give less than they cost is asked only now and then.

    Args:
        gamma_max: most tokens to ask for.
        cost: returns float32 (gamma_max + 2,), cost[n] of a forward of n positions, as it is known
            now.
    """

    TRIED_EVERY = 8  # plans, while drafting does not pay
    MEMORY = 0.9  # of a drafted step's gain and cost, at the next one

    def __init__(self, gamma_max: int, cost: Callable[[], Float32]) -> None:
        self._max = gamma_max
        self._cost = cost
        self._heuristic = HeuristicGamma(gamma_max)
        self._surplus = 0.5  # tokens per cost - 1 of drafted steps, fading; begins in good faith
        self._skipped = 0

    def plan(self, estimates: bool) -> tuple[int, Float32 | None]:
        if estimates:
            return self._max, self._cost()
        if self._surplus < 0:
            self._skipped += 1
            if self._skipped % self.TRIED_EVERY:
                return 0, None
        return self._heuristic.plan(estimates)

    def observe(self, drafted: int, accepted: int) -> None:
        self._heuristic.observe(drafted, accepted)
        surplus = (1 + accepted) / float(self._cost()[1 + drafted]) - 1
        self._surplus = self.MEMORY * self._surplus + (1 - self.MEMORY) * surplus
        self._surplus = max(self._surplus, -(1 - self.MEMORY))  # one good draft is enough again


class Ahead:
    """How many tokens to draft behind a prompt, from what became of earlier such drafts.

    Where answers begin as prompts lead to expect is a matter of the task, so it is learned over a
    Speculator's calls: doubled when a whole draft stands, halved when nothing of it does. Counts
    only; threads may share it.

    Args:
        most: tokens at most.
    """

    FIRST = 32
    LEAST = 2  # hardly costs anything, and notices when answers begin to be known

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = min(self.FIRST, most)

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn from a prefill that checked ``drafted`` tokens."""
        if drafted and accepted == 0:
            self.limit = max(self.limit // 2, min(self.LEAST, self._most))
        elif drafted and accepted == drafted >= self.limit:
            self.limit = min(2 * self.limit, self._most)


def assumed_cost(kind: str, gamma_max: int, rows: int = 1, dtype: str = "bfloat16") -> Float32:
    """A cost curve from ``COSTS``, for a batch whose rows all have so many positions.

    Args:
        kind: "cpu" or "gpu".
        gamma_max: most tokens in a draft.
        dtype: of the model; in float32 a CPU's forward is dearer by the position.
        rows: of the batch; cost[n] is that of n positions in each, in forwards of one in each.

    Returns:
        float32 (gamma_max + 2,), rising on behind the last known position as up to it.
    """
    points = (*POSITIONS, 2 * POSITIONS[-1])
    known = COSTS.get(f"{kind} {dtype}", COSTS[kind])
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


def check_tree(tree: int | str | None, most: int) -> int | str | None:
    """Return a valid ``tree`` argument: an integer in 1..most, "auto" or None."""
    if isinstance(tree, str) and tree != "auto":
        raise ValueError(f"tree must be an integer, 'auto' or None, got {tree!r}")
    return check_int("tree", tree, 1, most) if tree not in ("auto", None) else tree


def make_controller(
    gamma: int | str, gamma_max: int, cost: Callable[[], Float32]
) -> GammaController:
    """A controller for one row of a generation.

    Args:
        gamma: an integer; "heuristic"; or "auto", by cost.
        gamma_max: most tokens to ask for.
        cost: see CostGamma.
    """
    if isinstance(gamma, int):
        return FixedGamma(gamma)
    if gamma == "heuristic":
        return HeuristicGamma(gamma_max)
    return CostGamma(gamma_max, cost)
