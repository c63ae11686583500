"""What steps cost whose forward several generations share.

Such a forward runs each generation's last committed token and its draft, so its cost is one of the
number of generations and of all drafted tokens together. The curve of a number of generations
begins with what as many positions cost one of them, and every joint step corrects it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ngramspec.costs.batch import BatchStepCosts, DelegatedCosts
from ngramspec.costs.curve import Assumed, CostCurve, ForwardKind, behind
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.draft import Float32

MAX_DRAFTED_TOKENS = 128  # drafted tokens of a joint step for which a cost is known
UNLIMITED_TOKENS = 1 << 20  # joint steps have no last token of their own


class SwitchedCosts(DelegatedCosts):
    """One generation's costs, alone or in joint steps.

    Args:
        alone: its own costs.

    Attributes:
        alone: as given; ``now`` is this, or a JointShare while a joint step runs.
    """

    def __init__(self, alone: StepCostTracker) -> None:
        super().__init__(alone)
        self.alone = alone


class JointShare:
    """The costs of a joint step as one of its generations sees them before drafts are compared.

    A drafted token costs what it adds to the forward. That is compared with a generation's share of
    a joint step without drafts. All drafts at hand, ``worthwhile_rows`` cuts them further.

    Args:
        tracker: of joint steps of so many generations.
        generations: that share a forward.
        plain: whether the step is to have no drafts.
    """

    def __init__(self, tracker: StepCostTracker, generations: int, plain: bool) -> None:
        self._plain = plain
        self._surcharge = tracker.surcharge()
        joint = tracker.cost()
        self._cost: Float32 = (1.0 + (joint - 1.0) * generations).astype(np.float32)

    def at(self, length: int, pending: int | None = None) -> None:
        """The joint step knows the lengths of all."""

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
        """No position is padding."""
        return positions

    def record_time(self, width: int, seconds: float, tree: bool = False) -> None:
        """The joint step is timed as a whole."""

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """As ``record_time``."""


class JointCosts:
    """The costs of one model's joint steps, for each number of generations. One thread at a time.

    Args:
        model: that runs the forwards.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._trackers: dict[ForwardKind, StepCostTracker] = {}

    def of(self, alone: StepCostTracker, generations: int) -> StepCostTracker:
        """The costs of joint steps, where a width is 1 + all drafted tokens.

        Args:
            alone: the costs of one of the generations.
            generations: that share a forward.
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
    """What one generation's forwards of as many positions cost."""
    return lambda length, limit: behind(alone.cost(limit + generations, length), generations, limit)


AnyCosts = SwitchedCosts | StepCostTracker | BatchStepCosts
