"""What a forward costs: assumed at first, then learned from the times of all forwards.

The one question is ``CostModel.logs(rows, positions, length)``, and the one learner
answers it for single sequences, batches, joint steps and engines. The logarithm of a forward's time
is that of a table (see ``costs.processors``), in which a row and a drafted token count as a number
of positions that is learned, plus corrections: for the number of positions, for forwards with
drafts and for branches. Each correction has a second part that grows with the context length.
All are learned by recursive least squares (a Kalman filter without dynamics).

Two measures make this work on a shared machine. A step is compared with the steps just before it,
and only the difference between their forwards is learned from. Steps of equal forwards change
nothing, whatever the machine's speed does. An observation is weighted by the probability that it is
not caused by a change of the machine's speed (probabilistic data association, Bar-Shalom and Tse
1975), so stalls change nothing.
"""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec._native import Comparison, Corrections
from ngramspec.costs.processors import BFLOAT16, Costs, extended, initial_costs
from ngramspec.draft import Float64, Int64

if TYPE_CHECKING:
    from ngramspec.costs.saved import SavedCosts


KNOTS = (1, *range(2, 25), 32, 48, 64, 128, 512, 2048)  # positions with a separate correction
# Indices of the coefficients: the knots' after the first and, from LONG on, their long-context
# parts; the other pairs also have a long-context part; the logarithms of ``token`` factors.
LONG = len(KNOTS) - 1
DRAFTED, BRANCHES, ROW, TOKEN = 2 * LONG, 2 * LONG + 2, 2 * LONG + 4, 2 * LONG + 5
# Context length, in positions, at which the long-context corrections have half their weight.
HALF_WEIGHT_LENGTH = 2048.0

# Prior standard deviations of logarithms, chosen together on the machines of
# tests/costs/test_simulated_clock.py and tests/costs/test_engine_costs.py. Each pair is of short
# contexts and of what long ones add. KNOT_SPREADS: of each e-fold of the positions, common to all
# of them and independently; and of each knot independently.
KNOT_SPREADS = (0.25, 0.08, 0.05), (0.2, 0.1, 0.02)
DRAFTED_SPREADS = 0.2, 0.25
BRANCH_SPREADS = 0.1, 0.2
COUNT_SPREAD = 0.7  # of the number of positions that a row or a drafted token counts as

STEPS_AFTER_OUTLIER = 16  # without a plain one, if the last one's time was improbable
MAX_STEPS_WITHOUT_PLAIN = 128  # then a step of one position in each row is run to be timed
MAX_COUNTS = 1024  # pairs of rows and positions whose steps are counted
FORGOTTEN_PER_STEP = 1 / 1024  # share of the knowledge that is forgotten at each step
REVIVED_SHARE = 0.01  # of the prior uncertainty, restored after a change of the machine's speed


@dataclass(frozen=True, slots=True)
class ForwardKind:
    """The properties that select the cost model of a target's forwards.

    Attributes:
        machine, dtype: see ``initial_costs``.
        attention: name of the model's attention implementation.
        static: whether the cache is static.
        compiled: whether the forwards are compiled.
    """

    machine: str
    dtype: str = BFLOAT16
    attention: str = "sdpa"
    static: bool = False
    compiled: bool = False


class CostModel:
    """The costs of one kind of forwards. Thread-safe.

    Learning from a step costs O(coefficients^2), reading costs O(positions): each about 20
    microseconds. Memory: O(coefficients^2), about 60 KB, and at most 250 KB
    of counts.

    Args:
        table: costs until they are measured, see ``initial_costs``.
        token: number of positions of the table that a drafted token counts as at first.
        saved: costs that replace the table, or None.

    Attributes:
        steps: number of steps that were learned from.
        since_plain: the number of these since the last one without a draft.
        counts: the number of these by (rows, positions), of the MAX_COUNTS latest pairs.
        timed: rows -> the numbers of positions that were timed more than once, of these pairs.
    """

    def __init__(
        self, table: Costs, token: float = 1.0, spread: float = 1.0, saved: SavedCosts | None = None
    ) -> None:
        self.steps, self.since_plain = 0, MAX_STEPS_WITHOUT_PLAIN
        self.counts: OrderedDict[tuple[int, int], int] = OrderedDict()
        self.timed: dict[int, tuple[int, ...]] = {}
        self._table, self._saved, self._token = extended(table), saved, token
        self._corrections = Corrections(_covariance(spread), FORGOTTEN_PER_STEP, REVIVED_SHARE)
        self._lock = threading.Lock()

    def logs(self, rows: int, positions: Int64, length: int = 0) -> Float64:
        """Logarithms of the times of forwards without branches, in any unit, float64 (n,).

        Args:
            rows: number of sequences.
            positions: int64 (n,), of all rows together, >= 1.
            length: context length in positions.
        """
        long = positions_weight(length)
        with self._lock:
            mean = self._corrections.mean
            known = mean[:LONG] + long * mean[LONG:DRAFTED]
            drafted = mean[DRAFTED] + long * mean[DRAFTED + 1]
            row, token = math.exp(mean[ROW]), self._token * math.exp(mean[TOKEN])
        more = positions - rows
        at = 1.0 + row * (rows - 1) + token * np.maximum(more, 0) + np.minimum(more, 0)
        logs: Float64 = np.log(np.interp(at, *self._costs(length)))
        logs += np.interp(positions, KNOTS, (0.0, *known)) + drafted * (more > 0)
        return logs

    def surcharge(self, length: int) -> float:
        """Factor on the cost of a forward whose draft has branches, >= 1."""
        short, long = self._corrections.mean[BRANCHES : BRANCHES + 2].tolist()
        return math.exp(max(short + positions_weight(length) * long, 0.0))

    def learn(
        self,
        before: Comparison,
        seconds: float,
        rows: int,
        positions: int,
        length: int = 0,
        branches: bool = False,
    ) -> None:
        """Learn from a forward's time, compared with the forwards ``before``, and add it to them.

        The forward is described as in ``logs``, by one number of ``positions``. ``branches``:
        whether its draft has some.
        """
        self.steps += 1
        self.since_plain = self.since_plain + 1 if positions > rows else 0
        with self._lock:
            self._count(rows, positions)
            self._corrections.revived = max(REVIVED_SHARE, 1.0 / self.steps)
            assumed, features = self._features(rows, positions, length, branches)
            residual = math.log(max(seconds, 1e-9)) - assumed
            likely = self._corrections.learn(before, features, residual)
        if likely < 0.5 and not self.since_plain:
            self.since_plain = MAX_STEPS_WITHOUT_PLAIN - STEPS_AFTER_OUTLIER

    def _count(self, rows: int, positions: int) -> None:
        """Count a step, and drop the pair that was not counted for longest if there are many."""
        count = self.counts[rows, positions] = self.counts.get((rows, positions), 0) + 1
        self.counts.move_to_end((rows, positions))
        if count == 2:
            self.timed[rows] = (*self.timed.get(rows, ()), positions)
        if len(self.counts) > MAX_COUNTS:
            (rows, gone), count = self.counts.popitem(last=False)
            if count > 1:
                self.timed[rows] = tuple(each for each in self.timed[rows] if each != gone)
                if not self.timed[rows]:
                    del self.timed[rows]

    def _features(
        self, rows: int, positions: int, length: int, branches: bool
    ) -> tuple[float, list[tuple[int, float]]]:
        """A forward's assumed log time, linearized, and its features (index, value)."""
        if positions == 1:
            return 0.0, []  # all costs are relative to this forward's
        long, mean, counts, place = positions_weight(length), self._corrections.mean, [], 1.0
        for at, many in ((ROW, rows - 1), (TOKEN, self._token * (positions - rows))):
            if many:
                counts.append((at, many * math.exp(mean[at])))
                place += counts[-1][1]
        costs = self._costs(length)
        below, here, above = np.interp((place - 0.5, place, place + 0.5), *costs).tolist()
        assumed, features = math.log(here), list[tuple[int, float]]()
        for at, many in counts:
            slope = many * (above - below) / here
            features.append((at, slope))
            assumed -= slope * float(mean[at])
        for at, share in _knots(positions):
            features += [(at, share), (LONG + at, long * share)]
        for at, shown in ((DRAFTED, positions > rows), (BRANCHES, branches)):
            if shown:
                features += [(at, 1.0), (at + 1, long)]
        return assumed, features

    def _costs(self, length: int) -> tuple[Float64, Float64]:
        """Initial costs, as (positions, cost), each float64 (n,)."""
        return self._table if self._saved is None else extended(self._saved.near(length))


def positions_weight(length: int) -> float:
    """Weight of the long-context corrections in contexts of ``length`` positions, 0..1."""
    return length / (length + HALF_WEIGHT_LENGTH)


def _knots(positions: int) -> list[tuple[int, float]]:
    """(index, weight) of the corrections of the at most two knots around a number of positions."""
    at = bisect_right(KNOTS, positions) - 1
    if at == LONG or KNOTS[at] == positions:
        return [(at - 1, 1.0)] if at else []  # the first knot has no correction
    share = (positions - KNOTS[at]) / (KNOTS[at + 1] - KNOTS[at])
    return [(at - 1, 1.0 - share), (at, share)] if at else [(at, share)]


def _covariance(spread: float) -> Float64:
    """Prior covariance of all coefficients. Neighbouring knots are correlated."""
    logs = np.log(np.array(KNOTS[1:]) / 2)
    nearer = np.minimum(logs[:, None], logs[None, :])
    pairs = [spread * each for each in DRAFTED_SPREADS]
    pairs += [*BRANCH_SPREADS, COUNT_SPREAD, COUNT_SPREAD]
    covariance = np.diag(np.square([0.0] * DRAFTED + pairs))
    for at, spreads in zip((0, LONG), KNOT_SPREADS, strict=True):
        trend, wider, single = np.square(spread * np.array(spreads))
        covariance[at : at + LONG, at : at + LONG] = (
            trend * np.outer(logs, logs) + wider * nearer + single * np.eye(LONG)
        )
    return covariance


_models: dict[int, dict[ForwardKind, CostModel]] = {}  # by id of a target that exists
_lock = threading.Lock()


def model_of(target: Any, kind: ForwardKind, saved: SavedCosts | None = None) -> CostModel:
    """The process-wide cost model of a target and a kind of its forwards.

    ``saved`` are initial costs for one that does not exist yet.
    """
    with _lock:
        if id(target) not in _models:  # mlx's modules have no hash
            weakref.finalize(target, _models.pop, id(target), None).atexit = False
        known = _models.setdefault(id(target), {})
        if kind not in known:
            known[kind] = CostModel(initial_costs(kind.machine, kind.dtype), saved=saved)
        return known[kind]
