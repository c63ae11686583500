"""Costs of joint steps, in which several generations share a forward.

A joint forward runs each generation's last committed token and its draft. Its cost depends on the
number of generations and on the total number of drafted tokens. The curve for a number of
generations starts with one generation's costs for the same number of positions. Every joint step
corrects it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ngramspec.costs.curve import Assumed, CostCurve, ForwardKind, joint_cost, scaled
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.draft import Float32

MAX_DRAFTED_TOKENS = 128  # drafted tokens of a joint step that have a known cost; not tuned
UNLIMITED_TOKENS = 1 << 20  # the number of joint steps has no known limit


class JointShare:
    """The costs of a joint step for one of its generations, before drafts are compared.

    A drafted token costs what it adds to the joint forward. The unit is one generation's share of
    a joint step without drafts. Once all drafts are known, ``worthwhile_rows`` cuts them further.
    ``plain``: the step must have no drafts.
    """

    def __init__(self, tracker: StepCostTracker, generations: int, plain: bool) -> None:
        self._plain, self._surcharge = plain, tracker.surcharge()
        self._cost = scaled(tracker.cost(), generations)

    def at(self, length: int, pending: int | None = None, *, prefill: bool = False) -> None:
        """Ignored: the joint step sets its own context length."""

    def plain(self) -> bool:
        """See StepCostTracker."""
        return self._plain

    def cost(self) -> Float32:
        """See StepCostTracker."""
        return self._cost

    def surcharge(self) -> float:
        """See StepCostTracker."""
        return self._surcharge

    def width(self, positions: int, room: int) -> int:
        """``positions``: joint steps have no padding."""
        return positions

    def record_time(self, width: int, seconds: float, tree: bool = False) -> None:
        """Ignored: the joint step is timed as a whole."""

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """Ignored, as in ``record_time``."""


class JointCosts:
    """The costs of one model's joint steps, per number of generations. Not thread-safe."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._trackers: dict[ForwardKind, StepCostTracker] = {}

    def of(self, alone: StepCostTracker, generations: int) -> StepCostTracker:
        """The tracker of joint steps of ``generations``, where a width is 1 + all drafted tokens.

        ``alone`` are the costs of one of the generations.
        """
        kind = replace(alone.kind, rows=generations, joint=True)
        if kind not in self._trackers:
            tracker = StepCostTracker(
                self._model, kind, max(MAX_DRAFTED_TOKENS, alone.limit) + 1, UNLIMITED_TOKENS
            )
            tracker.curve.begin_with(_beginning(alone.curve, generations))
            self._trackers[kind] = tracker
        return self._trackers[kind]


def _beginning(alone: CostCurve, generations: int) -> Assumed:
    """Initial costs of joint steps, from one generation's forwards of equally many positions."""
    return lambda length, limit: joint_cost(
        alone.cost(limit + generations, length), generations, limit
    )
