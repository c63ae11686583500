"""Current step costs of one generation, and the width of its forwards.

The speed of a shared machine varies, so each step is compared with the steps just before it: see
``costs.learned``. The expected gain of a draft must exceed its cost by a margin: see
``DraftMargin``. It also grows with the uncertainty of the curve, which is high until a few drafted
steps were timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ngramspec.costs.curve import CONTEXT_BUCKET_POSITIONS, ForwardKind, curve_of
from ngramspec.costs.learned import Comparison, Forward
from ngramspec.draft import Float32

if TYPE_CHECKING:
    from ngramspec.costs.saved import SavedCosts

# A wider forward replaces a narrower one if its relative cost is at most this. Not tuned.
MAX_PADDED_COST = 0.98


class DraftMargin:
    """How much a draft must gain beyond what it costs, in one generation. Not thread-safe.

    A drafter's estimates are those of earlier texts. Of a text that repeats nothing they expect too
    much, and the best of many estimates is more often too high than too low. So what a draft adds
    to a forward's cost is multiplied by a factor, which grows while drafts are rejected.

    The constants were chosen by replaying recorded outputs (``ngramspec replay --fresh``) at the
    costs of three processors. Tokens per cost differ by less than 1 % between factors of 1.2 and 2
    and between 0.25 and 1 for each rejection.

    Attributes:
        rejections: consecutive drafted steps without an accepted token, decaying.
    """

    MARGIN = 0.02  # of the cost of a plain step, added to each draft's cost
    ADDED_FACTOR = 0.5  # added to the factor 1
    FACTOR_PER_REJECTION = 0.25  # added for each of ``rejections``
    MAX_REJECTIONS = 8.0
    REJECTION_DECAY = 1 / 16  # of a rejected step, forgotten at each undrafted step

    def __init__(self) -> None:
        self.rejections = 0.0

    def required(self, cost: Float32, known: float = 1.0) -> Float32:
        """The tokens that a step must be expected to yield, float32 (limit + 1,).

        Args:
            cost: of this shape: [n] is the cost of n positions relative to one. A draft never
                makes a forward cheaper.
            known: certainty of the costs, 0..1. Costs that are not known are found out sooner
                without ADDED_FACTOR.
        """
        factor = 1.0 + self.ADDED_FACTOR * known + self.FACTOR_PER_REJECTION * self.rejections
        required: Float32 = 1.0 + self.MARGIN + factor * np.maximum(cost - 1.0, 0.0)
        required[:2] = 1.0
        return required

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """Record a step's drafted and accepted tokens."""
        if not drafted:
            self.rejections = max(self.rejections - self.REJECTION_DECAY, 0.0)
        elif accepted:
            self.rejections = 0.0
        else:
            self.rejections = min(self.rejections + 1.0, self.MAX_REJECTIONS)


class StepCostTracker:
    """Tracks the step costs of one generation. Not thread-safe.

    The constants below are not tuned one by one. Together they are checked on the simulated
    machines of ``tests/costs/test_simulated_clock.py``.

    Args:
        model, kind: select the curve, see ``curve_of``.
        limit: maximum number of positions of a forward.
        tokens: maximum number of generated tokens. Short generations run no plain steps for timing.
        saved: initial costs instead of the assumed ones, or None.
        sizes: the only allowed widths of forwards, ascending. Empty: any width.

    Attributes:
        curve: the cost curve of the kind, shared by the whole process.
    """

    LONG_GENERATION_TOKENS = 48  # shorter generations run no undrafted steps for timing
    # A plain step (one without a draft) is run to be timed:
    INITIAL_PLAIN_STEPS = 1  # at the start, until this many were timed in the process
    MAX_STEPS_WITHOUT_PLAIN = 128  # after this many steps without one
    MAX_STEPS_AFTER_OUTLIER = 16  # after this many, if the last plain step's time was improbable
    MAX_COST_DEVIATION = 0.12  # if the log cost of the last forward has a larger standard deviation
    MIN_GAIN_DEVIATIONS = 0.5  # and the mean log gain of drafts is below this many deviations
    MAX_REJECTED_STEPS = 8  # after this many drafted steps without an accepted token
    WHOLE_MEMORY = 0.7  # weight of earlier drafts in the share that was not accepted whole
    MIN_GAIN_WEIGHT = 0.1  # minimum weight of a drafted step in the average gain
    UNCERTAIN_WIDTH = 8  # of the forward whose cost must be known; to its log cost's deviation
    MARGIN_PER_DEVIATION = 0.6  # of a draft's whole cost, beyond MAX_COST_DEVIATION

    def __init__(
        self,
        model: Any,
        kind: ForwardKind,
        limit: int,
        tokens: int,
        saved: SavedCosts | None = None,
        sizes: tuple[int, ...] = (),
    ) -> None:
        self.kind = kind
        self._run = np.arange(limit + 1)  # [n] is the width at which n positions run
        if sizes:
            places = np.searchsorted(sizes, self._run).clip(max=len(sizes) - 1)
            self._run = np.minimum(np.array(sizes)[places], limit)
        self._sizes = sizes
        self.limit = limit
        self._long = tokens >= self.LONG_GENERATION_TOKENS
        self._length = 0
        self._prefill = False
        self._pending: int | None = None
        self._undone = 0.5  # share of drafts that were not accepted whole, decaying
        self._steps = 0
        self._before = Comparison()
        self._last: Forward | None = None  # of the last timed step
        self._plain_ago = 0  # steps since the last plain one
        self._patience = self.MAX_STEPS_WITHOUT_PLAIN  # maximum of _plain_ago
        self._gain = 1.0  # mean tokens per cost of drafted steps; starts with one step of gain 1
        self._drafted = 1  # number of steps in _gain
        self._margin = DraftMargin()
        self._since_plain = 0  # consecutive rejected drafts since the last plain step
        self._chains: tuple[tuple[int, int], Float32] | None = None
        # Chains' costs, the other things that the next step's costs depend on, and these costs.
        self._cost: tuple[Float32, tuple[Any, ...], Float32] | None = None
        self.curve = curve_of(model, kind, saved)
        self._deviation = self._uncertainty()

    def at(self, length: int, pending: int | None = None, *, prefill: bool = False) -> None:
        """Set the context of the next step.

        Args:
            length: context length in positions.
            pending: accepted tokens that the next forward runs again, before the last committed
                one. None: rejected drafts never leave such tokens.
            prefill: whether the next step is the prefill. A draft only adds its own positions.
        """
        self._length, self._pending, self._prefill = length, pending, prefill

    def _uncertainty(self) -> float:
        """Standard deviation of the log cost of a draft."""
        return self.curve.deviation(Forward(self.UNCERTAIN_WIDTH, self._length))

    def plain(self) -> bool:
        """Whether the next step should be a plain one, so that it can be timed."""
        self._steps += 1
        self._plain_ago += 1
        if not self._long or self._last is None or self._last.width == 1:
            return False
        if self._plain_ago > self._patience or self.curve.count(1) < self.INITIAL_PLAIN_STEPS:
            return True
        unsure = self.curve.deviation(self._last)
        matters = unsure > self.MAX_COST_DEVIATION and self._gain < np.exp(
            self.MIN_GAIN_DEVIATIONS * unsure
        )
        return bool(matters) or self._since_plain >= self.MAX_REJECTED_STEPS

    def chains(self) -> Float32:
        """Relative costs of chains, float32 (limit + 1,): [n] of n positions, [1] is 1."""
        key = self.curve.steps, self._length // CONTEXT_BUCKET_POSITIONS
        if self._chains is None or key != self._chains[0]:
            self._chains = key, self.curve.cost(self.limit, self._length)
        return self._chains[1]

    def cost(self) -> Float32:
        """Minimum relative cost of n or more positions, with the margin, float32 (limit + 1,).

        Every value is at least 1, because a draft never makes a forward cheaper.
        """
        pending = None if self._pending is None else (self._pending, self._undone)
        state = self._prefill, pending, self._deviation, self._margin.rejections
        chains = self.chains()
        if self._cost is None or self._cost[0] is not chains or self._cost[1] != state:
            self._cost = chains, state, self._required(self._priced(chains))
        return self._cost[2]

    def _required(self, cost: Float32) -> Float32:
        """The minimum cost of n or more positions, with the larger of the two margins."""
        cheapest = np.minimum.accumulate(cost[self._run][::-1])[::-1]
        excess = max(self._deviation / self.MAX_COST_DEVIATION - 1.0, 0.0)
        required = self._margin.required(cheapest, max(1.0 - excess, 0.0))
        margin = DraftMargin.MARGIN + self.MARGIN_PER_DEVIATION * self.MAX_COST_DEVIATION * excess
        required[2:] = np.maximum(required[2:], (1.0 + margin) * cheapest[2:])
        return required

    def _priced(self, cost: Float32) -> Float32:
        """The costs of ``chains`` plus the cost of pending tokens, in steps without a draft.

        In a prefill, a position costs what the widest forwards take for a further one.
        Pending tokens widen the forward of any step. A plain step leaves none. A draft that is not
        accepted whole leaves them and its own accepted tokens to the next step.
        """
        last = len(cost) - 1
        if self._prefill:
            slope = (cost[last] - cost[(last + 1) // 2]) / max(last // 2, 1)
            linear: Float32 = (1.0 + slope * np.arange(-1.0, last)).astype(np.float32)
            return linear
        if self._pending is None:
            return cost
        wider = cost[np.minimum(np.arange(last + 1) + self._pending, last)]
        left = max(float(cost[min(self._pending + 3, last)]) - float(cost[1]), 0.0)
        wider[2:] += self._undone * left
        priced: Float32 = wider / wider[1]
        return priced

    def surcharge(self) -> float:
        """Factor on the cost of a forward whose draft has branches, >= 1."""
        return self.curve.surcharge(self._length) if self.kind.tree else 1.0

    def width(self, positions: int, room: int) -> int:
        """The width to run if ``positions`` are needed and at most ``room`` fit."""
        last = min(room, self.limit)
        if positions >= last or positions == 1 or self._sizes:
            return positions
        cost, count = self.chains(), self.curve.count
        widths = [each for each in range(positions + 1, last + 1) if count(each) > 1]
        best = min(widths, key=lambda each: cost[each], default=positions)
        return best if cost[best] < MAX_PADDED_COST * cost[positions] else positions

    def record_time(self, width: int, seconds: float, tree: bool = False) -> None:
        """Record the time of a step whose forward had ``width`` positions, and maybe a tree mask.

        Steps that compiled something must not be recorded.
        """
        if self._steps < 2:  # caches are cold in the first step after a prefill
            return
        forward = Forward(int(self._run[min(width, self.limit)]), self._length, tree)
        likely = self.curve.learn(self._before, forward, seconds, self.limit)
        self._last = forward
        if forward.width > 1:
            self._deviation = self._uncertainty()
        else:
            self._plain_ago = 0
            self._patience = (
                self.MAX_STEPS_WITHOUT_PLAIN if likely > 0.5 else self.MAX_STEPS_AFTER_OUTLIER
            )

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """Record a step's drafted and accepted tokens over all rows. Call after ``record_time``."""
        if drafted:
            self._undone += (1 - self.WHOLE_MEMORY) * ((accepted < drafted) - self._undone)
        if drafted and self._last is not None:
            cost, plain = self.chains(), min(1 + (self._pending or 0), self.limit)
            times = max(float(cost[self._last.width] / cost[plain]), 1.0)
            gained = (1 + accepted / self.kind.rows) / times
            self._drafted += 1
            self._gain += max(1 / self._drafted, self.MIN_GAIN_WEIGHT) * (gained - self._gain)
        self._margin.record_acceptance(drafted, accepted)
        self._since_plain = self._since_plain + 1 if drafted and not accepted else 0
