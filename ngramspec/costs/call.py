"""What the next step of one call costs: for the rows that remain, alone or in a joint step."""

from __future__ import annotations

from collections.abc import Callable

from ngramspec.costs.curve import Assumed, CostCurve, scaled
from ngramspec.costs.joint import JointShare
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.draft import Float32


class CallCosts:
    """The costs of a call's steps, delegated to ``now``. Not thread-safe.

    It has one StepCostTracker per number of rows that occurs, made by ``make``. A curve for fewer
    rows starts from the curve for more rows.

    Attributes:
        rows: number of rows of the following forwards.
        tracker: the costs of separate steps with these rows.
        now: ``tracker``, or a JointShare while a joint step runs.
    """

    def __init__(self, make: Callable[[int], StepCostTracker], rows: int) -> None:
        self.rows = self._all = rows
        self.tracker = make(rows)
        self.now: StepCostTracker | JointShare = self.tracker
        self._make, self._trackers = make, {rows: self.tracker}
        self._length = 0
        self._pending: int | None = None
        self._alone: tuple[Float32, Float32] | None = None  # the costs, and one row's share of them

    def keep_rows(self, rows: int) -> None:
        """Set the number of rows of the following forwards."""
        if rows not in self._trackers:
            fresh = self._trackers[rows] = self._make(rows)
            fresh.at(self._length, self._pending)
            fresh.curve.begin_with(_share_of(self.tracker.curve, rows / self.rows))
        self.rows, self.tracker = rows, self._trackers[rows]
        self.now = self.tracker
        self.now.at(self._length, self._pending)

    def at(self, length: int, pending: int | None = None, *, prefill: bool = False) -> None:
        """See StepCostTracker."""
        self._length, self._pending = length, pending
        self.now.at(length, pending, prefill=prefill)

    def plain(self) -> bool:
        """See StepCostTracker. With fewer rows than at first, only if a plain step was timed."""
        due = self.now.plain()
        return due and (self.rows == self._all or self.tracker.curve.count(1) > 0)

    def cost(self) -> Float32:
        """See StepCostTracker."""
        return self.now.cost()

    def cost_alone(self) -> Float32:
        """Lower bound on the costs of one row's draft, float32 (limit + 1,).

        A wider forward may be worth its cost because of other rows, so each row bears only its
        share. The width is chosen later, when all drafts are known.
        """
        cost = self.now.cost()
        if self._alone is None or self._alone[0] is not cost:
            self._alone = cost, scaled(cost, 1.0 / self.rows)
        return self._alone[1]

    def surcharge(self) -> float:
        """See StepCostTracker."""
        return self.now.surcharge()

    def width(self, positions: int, room: int) -> int:
        """See StepCostTracker."""
        return self.now.width(positions, room)

    def record_time(self, width: int, seconds: float, tree: bool = False) -> None:
        """See StepCostTracker."""
        self.now.record_time(width, seconds, tree)

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """See StepCostTracker."""
        self.now.record_acceptance(drafted, accepted)


def _share_of(curve: CostCurve, share: float) -> Assumed:
    """``scaled`` of the curve in a context of any length."""
    return lambda length, limit: scaled(curve.cost(limit, length), share)
