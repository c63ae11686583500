"""The cost of a forward of n positions relative to one position: first assumed, then measured.

cost(n) depends on the machine, the model, its dtype, the batch, the context length and whether the
draft has branches. It is neither smooth nor monotone. A curve starts with assumed costs (or with
costs saved by ``ngramspec calibrate``), and every step corrects it: see ``costs.learned``. The
process keeps one curve per model and kind of forwards, so a new Speculator starts with what was
measured.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ngramspec.costs.learned import (
    KNOTS,
    Comparison,
    Float64,
    Forward,
    knot_weights,
    positions_weight,
    prior_corrections,
)
from ngramspec.costs.processors import BFLOAT16, GPU, initial_costs
from ngramspec.draft import Float32

if TYPE_CHECKING:
    from ngramspec.costs.saved import SavedCosts

logger = logging.getLogger("ngramspec")

# Relative cost of a second position in each row, except in bfloat16; measured on the same CPU.
BATCH_SURCHARGE = 0.2

# Widths, and the factors on their costs as the context length goes to infinity (attention).
LONG_CONTEXT_WIDTHS = (1, 2, 5, 11, 16, 24, 33, 65)
LONG_CONTEXT_FACTORS = (1, 1.3, 1.4, 1.5, 1.6, 1.7, 1.9, 2.2)  # on a CPU; on a GPU: 1
# The following constants are not tuned.
CONTEXT_BUCKET_POSITIONS = 64  # contexts within a bucket share a curve
SAVED_CERTAINTY = 2.0  # saved costs' standard deviations are this much smaller than assumed ones'
# Saved costs that differ from measured ones by a larger factor are dropped.
MAX_SAVED_COST_FACTOR = 1.5
MIN_WIDTH_MEASUREMENTS = 4  # measurements of a width that suffice for that


def extended(
    at: NDArray[np.integer], known: Mapping[int, float], slope: float | None = None
) -> Float64:
    """Costs at widths ``at``, linear between the ``known`` ones, which are in ascending order.

    After the last one, each position adds ``slope``; None: as between the last two.
    """
    widths, costs = np.array(list(known)), np.array(list(known.values()))
    if slope is None:
        slope = (costs[-1] - costs[-2]) / (widths[-1] - widths[-2])
    curve: Float64 = np.interp(at, widths, costs) + slope * np.maximum(at - widths[-1], 0)
    return curve


def assumed_cost(machine: str, gamma_max: int, rows: int = 1, dtype: str = BFLOAT16) -> Float32:
    """A cost curve from ``initial_costs``, float32 (gamma_max + 2,).

    [n] is the cost of a forward of n positions per row, relative to one position per row. It is
    extrapolated linearly after the last point.
    """
    curve = extended(rows * np.arange(gamma_max + 2), initial_costs(machine, dtype))
    cost: Float32 = (curve / curve[1]).astype(np.float32)
    if rows > 1 and dtype != BFLOAT16:
        cost[2:] += BATCH_SURCHARGE
    return cost


# Relative costs until they are measured, float32 (limit + 1,), by context length and limit.
Assumed = Callable[[int, int], Float32]


class CostCurve:
    """The costs of one kind of a model's forwards. Thread-safe.

    Learning from a step costs O(knots^2), reading a curve O(limit * knots): each about 20
    microseconds. Memory: O(knots^2), about 60 KB.

    Args:
        assumed: costs until they are measured: see ``ForwardKind.assumed``.
        saved: initial costs instead of these, until one is wrong by more than
            ``MAX_SAVED_COST_FACTOR``, or None.

    Attributes:
        dropped: whether ``saved`` was wrong and has been replaced by ``assumed``.
        steps: number of changes, mostly steps that were learned from.
    """

    def __init__(self, assumed: Assumed, saved: SavedCosts | None = None) -> None:
        self.dropped, self.steps = False, 0
        self._assumed = assumed
        self._saved = saved
        self._logs: dict[tuple[int, int], Float64] = {}
        self._corrections = prior_corrections(1.0 if saved is None else SAVED_CERTAINTY)
        self._counts: dict[int, int] = {}  # number of steps by width
        self._lock = threading.Lock()

    def begin_with(self, assumed: Assumed) -> None:
        """Replace the assumed costs, unless something was measured or saved."""
        if not self.steps and self._saved is None:
            self._assumed = assumed
            self._logs.clear()

    def _expected(self, limit: int, length: int) -> Float64:
        """Logarithms of the assumed or saved costs, float64 (limit + 1,)."""
        saved, near = self._saved, length // CONTEXT_BUCKET_POSITIONS
        logs = self._logs.get((limit, near))
        if logs is None:
            curve = self._assumed if saved is None else saved.curve
            cost = curve(near * CONTEXT_BUCKET_POSITIONS, limit).astype(np.float64)
            cost[0] = cost[1]  # unused, but its logarithm must be finite
            logs = self._logs[limit, near] = np.log(cost)
        return logs

    def _learned(self, limit: int, length: int) -> Float64:
        """Corrections of these logarithms, float64 (limit + 1,)."""
        count, weight = len(KNOTS), positions_weight(length)
        with self._lock:
            mean = self._corrections.mean
            known = mean[:count] + weight * mean[count : 2 * count]
        learned: Float64 = knot_weights(limit) @ known
        return learned

    def cost(self, limit: int, length: int) -> Float32:
        """Costs of forwards without branches in a context of ``length`` positions.

        They are float32 (limit + 1,): [n] is the cost of n positions relative to one; [0] is
        unused.
        """
        logs = self._expected(limit, length) + self._learned(limit, length)
        cost: Float32 = np.exp(logs).astype(np.float32)
        return cost

    def surcharge(self, length: int) -> float:
        """Factor on the cost of a forward whose draft has branches, >= 1."""
        with self._lock:
            short, long = self._corrections.mean[-2:].tolist()
        return float(np.exp(max(short + positions_weight(length) * long, 0.0)))

    def count(self, width: int) -> int:
        """Number of forwards of this width that were learned from."""
        return self._counts.get(width, 0)

    def deviation(self, forward: Forward) -> float:
        """Posterior standard deviation of the logarithm of a forward's cost."""
        features = forward.features()
        with self._lock:
            covariance = self._corrections.covariance
            variance = sum(a * b * covariance[i, j] for i, a in features for j, b in features)
        return math.sqrt(max(variance, 0.0))

    def learn(self, before: Comparison, now: Forward, seconds: float, limit: int) -> float:
        """Learn from a step of ``seconds`` with the forward ``now``.

        It is compared with the steps ``before``, and added to them. ``limit`` is the maximum number
        of positions of a forward. Returned is the probability that the time was not affected by a
        change of the machine's speed.
        """
        expected = self._expected(limit, now.length)
        residual = math.log(max(seconds, 1e-9)) - float(expected[now.width])
        features = now.features()
        with self._lock:
            self._counts[now.width] = self.count(now.width) + 1
            self.steps += 1
            likely = self._corrections.learn(before, features, residual)
        if self._saved is not None and self.count(now.width) >= MIN_WIDTH_MEASUREMENTS:
            off = self._learned(limit, now.length)[now.width]
            if abs(off) > np.log(MAX_SAVED_COST_FACTOR):
                self._drop_saved()
                before.forget()
        return likely

    def _drop_saved(self) -> None:
        logger.warning(
            "saved costs differ from measured ones by more than a factor of %s;"
            " they are dropped and measured again",
            MAX_SAVED_COST_FACTOR,
        )
        self._saved, self.dropped = None, True
        self._logs.clear()
        with self._lock:
            self._corrections = prior_corrections()
            self._counts.clear()
            self.steps += 1


@dataclass(frozen=True, slots=True)
class ForwardKind:
    """The properties that select the cost curve of a model's forwards.

    Attributes:
        machine, dtype: see ``initial_costs``.
        rows: number of rows of the batch.
        attention: name of the model's attention implementation.
        static: whether the cache is static.
        compiled: whether the forwards are compiled.
        tree: whether drafts may have branches. Forwards with and without them share a curve.
        joint: whether ``rows`` generations share a forward. Then its width is 1 + all drafted
            tokens; otherwise the width is that of each row.
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
        """Relative costs of these forwards until they are measured, float32 (limit + 1,).

        ``length`` is the context length in positions.
        """
        if self.joint:
            alone = replace(self, rows=1, joint=False).assumed(length, limit + self.rows)
            return joint_cost(alone, self.rows, limit)
        cost = assumed_cost(self.machine, limit - 1, self.rows, self.dtype)
        if self.machine == GPU:
            return cost
        widths, known = np.log(LONG_CONTEXT_WIDTHS), np.log(LONG_CONTEXT_FACTORS)
        more = np.interp(np.log(np.arange(limit + 1).clip(1)), widths, known)
        longer: Float32 = (cost * np.exp(more * positions_weight(length))).astype(np.float32)
        return longer


def joint_cost(cost: Float32, rows: int, limit: int) -> Float32:
    """Convert the costs of one row's forwards into those of joint forwards.

    Args:
        cost: float32 (limit + rows + 1,): [n] is the cost of a forward of n positions.
        rows: number of generations that share a forward.
        limit: maximum width of a joint forward, counting all last committed tokens as one.

    Returns:
        float32 (limit + 1,): [n] is the cost of rows + n - 1 positions relative to ``rows``.
    """
    later: Float32 = cost[rows - 1 :][: limit + 1] / cost[rows]
    return later


def scaled(cost: Float32, share: float) -> Float32:
    """The curve with ``share`` times the cost of further positions, of the same shape."""
    shared: Float32 = (1.0 + (cost - 1.0) * share).astype(np.float32)
    return shared


_curves: WeakKeyDictionary[Any, dict[ForwardKind, CostCurve]] = WeakKeyDictionary()
_lock = threading.Lock()


def curve_of(model: Any, kind: ForwardKind, saved: SavedCosts | None = None) -> CostCurve:
    """The process-wide curve of a model and a kind of forwards, with and without branches.

    ``saved`` are initial costs for a curve that does not exist yet.
    """
    kind = replace(kind, tree=False)
    with _lock:
        known = _curves.setdefault(model, {})
        if kind not in known:
            known[kind] = CostCurve(kind.assumed, saved)
        return known[kind]
