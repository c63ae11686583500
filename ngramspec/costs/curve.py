"""What a forward of n positions costs in forwards of one: assumed, then measured.

cost(n) depends on the machine, the model, its dtype, the batch, the context's length and whether
the draft has branches; it is neither smooth nor monotone. A curve starts as assumed (or as saved by
``ngramspec calibrate``), and every step corrects it, see ``learned_costs``. Curves live as long as
the process, one for each model and kind of forwards, so that a new Speculator starts with what was
measured.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from ngramspec.costs.learned import (
    Comparison,
    CurveCorrections,
    Float64,
    Forward,
    positions_weight,
)
from ngramspec.draft import Float32

logger = logging.getLogger("ngramspec")

# What a forward of n positions costs, in forwards of one position: linear between these points.
POSITIONS = (1, 2, 3, 5, 8, 11, 16, 24, 32, 48, 64, 128)
COSTS = {
    # drafters are compared by these two; measured: SmolLM2-135M, bfloat16, two CPU cores
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    # assumed: a model of 7-8 billion parameters on one data-centre GPU
    "gpu": (1, 1, 1, 1.0, 1.0, 1.0, 1.01, 1.02, 1.03, 1.05, 1.07, 1.15),
    # where generations start from: the same model and cores, measured beside plain steps
    "cpu bfloat16": (1, 1.03, 1.04, 1.05, 1.07, 1.10, 1.14, 1.21, 1.29, 1.52, 1.65, 3.0),
    "cpu float32": (1, 1.05, 1.12, 1.5, 1.75, 2.1, 1.97, 2.25, 2.5, 3.0, 3.4, 6.2),
}
BATCH_SURCHARGE = 0.2  # of a second position in each row, but in bfloat16: measured on the same CPU

# By what these factors a position costs more in contexts of endless length: attention's part.
LONG_CONTEXT_FACTORS = {
    "cpu": ((1, 2, 5, 11, 16, 24, 33, 65), (1, 1.3, 1.4, 1.5, 1.6, 1.7, 1.9, 2.2))
}
NEAR = 64  # positions of context that hardly change a cost
CERTAIN = 2.0  # how much surer saved costs are than assumed ones
WRONG = 1.5  # factor between saved and measured costs from which the saved ones are dropped
SURE = 4  # times of a width that are enough for that


def assumed_cost(kind: str, gamma_max: int, rows: int = 1, dtype: str = "bfloat16") -> Float32:
    """A cost curve from ``COSTS``.

    Args:
        kind: "cpu" or "gpu".
        gamma_max: most tokens in a draft.
        rows: of the batch.
        dtype: of the model, by name; in float32 a position costs a CPU more.

    Returns:
        float32 (gamma_max + 2,), cost[n] of a forward of n positions in each row, in forwards of
        one position in each row; linear behind the last point.
    """
    points = (*POSITIONS, 2 * POSITIONS[-1])
    known = COSTS.get(f"{kind} {dtype}", COSTS[kind])
    costs = (*known, known[-1] + 2 * (known[-1] - known[-2]))
    per_position = (costs[-1] - costs[-2]) / (points[-1] - points[-2])
    positions = rows * np.arange(gamma_max + 2)
    curve = np.interp(positions, points, costs)
    curve += per_position * np.maximum(positions - points[-1], 0)
    cost: Float32 = (curve / curve[1]).astype(np.float32)
    if rows > 1 and dtype != "bfloat16":
        cost[2:] += BATCH_SURCHARGE
    return cost


class Saved(Protocol):
    """Costs measured beforehand."""

    def curve(self, length: int, limit: int) -> Float32:
        """float32 (limit + 1,) for contexts of about ``length`` positions."""


class Assumed(Protocol):
    """Costs until they are measured."""

    def __call__(self, length: int, limit: int) -> Float32:
        """float32 (limit + 1,) for contexts of ``length`` positions."""


class CostCurve:
    """The costs of one kind of a model's forwards. Thread-safe.

    Args:
        assumed: see ``ForwardKind.assumed``: the costs until they are measured.
        saved: costs to begin with in their place, until some are ``WRONG`` times off; None: none.

    Attributes:
        dropped: whether ``saved`` was wrong, and ``assumed`` took its place.
    """

    def __init__(self, assumed: Assumed, saved: Saved | None = None) -> None:
        self.dropped = False
        self.learned = CurveCorrections(1.0 if saved is None else CERTAIN)
        self._assumed = assumed
        self._saved = saved
        self._logs: dict[tuple[int, int], Float64] = {}

    def begin_with(self, assumed: Assumed) -> None:
        """Assume other costs, unless something was measured or saved."""
        if not self.learned.steps and self._saved is None:
            self._assumed = assumed
            self._logs.clear()

    def _expected(self, limit: int, length: int) -> Float64:
        """Logarithms of what was assumed or saved, float64 (limit + 1,)."""
        saved, near = self._saved, length // NEAR
        logs = self._logs.get((limit, near))
        if logs is None:
            curve = self._assumed if saved is None else saved.curve
            logs = np.log(_from_one(curve(near * NEAR, limit)))
            self._logs[limit, near] = logs
        return logs

    def cost(self, limit: int, length: int) -> Float32:
        """cost[n] of a forward of n positions without branches, in forwards of one.

        Args:
            limit: most positions.
            length: of the context.

        Returns:
            float32 (limit + 1,), index 0 unused.
        """
        logs = self._expected(limit, length) + self.learned.corrections(limit, length)
        cost: Float32 = np.exp(logs).astype(np.float32)
        return cost

    def surcharge(self, length: int) -> float:
        """By what a forward's cost is multiplied if its draft has branches, >= 1."""
        return float(np.exp(self.learned.surcharge(length)))

    def learn(self, before: Comparison, now: Forward, seconds: float, limit: int) -> float:
        """Learn from a step.

        Args:
            before: what its time is compared with; the step is taken in.
            now: its forward.
            seconds: its time.
            limit: most positions of a forward.

        Returns:
            the probability that its time was not changed by a swing of the machine's speed.
        """
        expected = self._expected(limit, now.length)
        residual = float(np.log(max(seconds, 1e-9)) - expected[now.width])
        likely = self.learned.learn(before, now, residual)
        if self._saved is not None and self.learned.count(now.width) >= SURE:
            off = self.learned.corrections(limit, now.length)[now.width]
            if abs(off) > np.log(WRONG):
                logger.warning("saved costs are not what forwards take here; measuring anew")
                self._saved, self.dropped = None, True
                self._logs.clear()
                self.learned.forget()
                before.forget()
        return likely


def _from_one(cost: Float32) -> Float64:
    """``cost`` with an entry for no position, which is not used."""
    return np.concatenate((cost[1:2], cost[1:])).astype(np.float64)


@dataclass(frozen=True, slots=True)
class ForwardKind:
    """What forwards of one model that share a curve have in common.

    Attributes:
        machine: "cpu" or "gpu".
        dtype: of the model, by name.
        rows: of the batch.
        attention: the model's implementation, by name.
        static: whether the cache is static.
        compiled: whether the forwards are compiled.
        tree: whether drafts may have branches; forwards with and without them share a curve.
        joint: whether ``rows`` generations share a forward, a width being 1 + what they draft in
            all; else each row has that width.
    """

    machine: str
    dtype: str
    rows: int = 1
    attention: str = "sdpa"
    static: bool = False
    compiled: bool = False
    tree: bool = False
    joint: bool = False

    def assumed(self, length: int, limit: int) -> Float32:
        """float32 (limit + 1,): what these forwards cost until they are measured.

        Args:
            length: of the context.
            limit: most positions.
        """
        if self.joint:
            alone = replace(self, rows=1, joint=False).assumed(length, limit + self.rows)
            return behind(alone, self.rows, limit)
        cost = assumed_cost(self.machine, limit - 1, self.rows, self.dtype)
        points, factors = LONG_CONTEXT_FACTORS.get(self.machine, ((1,), (1.0,)))
        more = np.interp(np.log(np.arange(limit + 1).clip(1)), np.log(points), np.log(factors))
        longer: Float32 = (cost * np.exp(more * positions_weight(length))).astype(np.float32)
        return longer


def behind(cost: Float32, rows: int, limit: int) -> Float32:
    """The costs of joint forwards, by those of one row.

    Args:
        cost: float32 (limit + rows + 1,), [n] of a forward of n positions.
        rows: that share a forward.
        limit: most positions of a joint forward, the last committed tokens counted as one.

    Returns:
        float32 (limit + 1,), [n] of a forward of rows + n - 1 positions, in forwards of ``rows``.
    """
    later: Float32 = cost[rows - 1 :][: limit + 1] / cost[rows]
    return later


_curves: WeakKeyDictionary[Any, dict[ForwardKind, CostCurve]] = WeakKeyDictionary()
_lock = threading.Lock()


def curve_of(model: Any, kind: ForwardKind, saved: Saved | None = None) -> CostCurve:
    """The curve of a kind of a model's forwards: one for the whole process.

    Drafts with and without branches share it.

    Args:
        model: that runs the forwards.
        kind: of forwards.
        saved: costs to start with, or None.
    """
    kind = replace(kind, tree=False)
    with _lock:
        known = _curves.setdefault(model, {})
        if kind not in known:
            known[kind] = CostCurve(kind.assumed, saved)
        return known[kind]
