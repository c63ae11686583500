"""How wide one generation's forwards run, by what its steps cost.

A shared machine runs faster and slower by turns. So a step is compared with those just before it,
whatever their widths, see ``learned_costs``. And because a curve can be wrong for a while, drafts
must promise more than they cost, by a margin that grows with each drafted step of which no token is
accepted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ngramspec.costs.curve import NEAR, ForwardKind, Saved, curve_of
from ngramspec.costs.learned import Comparison, Forward
from ngramspec.draft import Float32

PAYS = 0.98  # a wider forward runs in place of a narrower one if it costs at most this share of it


class StepCostTracker:
    """One generation's current costs, and how wide its forwards run. One thread at a time.

    Args:
        model: that runs the forwards.
        kind: of forwards.
        limit: most positions of a forward.
        tokens: how many tokens may be generated: short generations run no plain steps to be timed.
        saved: costs to start with in place of the assumed ones, or None.
        sizes: the only widths that forwards run at, ascending; empty: any.

    Attributes:
        kind, limit: as given.
        curve: of the kind, for the whole process.
    """

    LONG_GENERATION_TOKENS = 48  # shorter generations run no undrafted steps for timing
    PROBES = 1  # plain steps at first, if none was ever timed
    STALE = 128  # steps without a plain one after which one is run to be timed,
    AGAIN = 16  # and after one that is hard to believe
    UNSURE = 0.12  # standard deviation of a draft's cost from which one is,
    DOUBT = 0.5  # unless drafts gain so many of these deviations
    MEMORY = 0.7  # weight of the earlier drafts in the share of those accepted as a whole
    NEWEST = 0.1  # least weight of a drafted step in the average of what they gained
    REJECTED = 8  # drafted steps without an accepted token after which one is
    MARGIN = 0.02  # by which a draft's tokens per cost must be above a plain step's
    RISE = 0.01  # of the margin, for each drafted step without an accepted token
    MOST = 0.2  # margin at most
    FALL = 1 / 16  # of such a step, forgotten at each undrafted step

    def __init__(
        self,
        model: Any,
        kind: ForwardKind,
        limit: int,
        tokens: int,
        saved: Saved | None = None,
        sizes: tuple[int, ...] = (),
    ) -> None:
        self.kind = kind
        self._run = np.arange(limit + 1)  # int64 (limit + 1,): the width that n positions run at
        if sizes:
            places = np.searchsorted(sizes, self._run).clip(max=len(sizes) - 1)
            self._run = np.minimum(np.array(sizes)[places], limit)
        self._sizes = sizes
        self.limit = limit
        self._long = tokens >= self.LONG_GENERATION_TOKENS
        self._length = 0
        self._pending: int | None = None
        self._undone = 0.5  # share of drafts that were not accepted as a whole, decaying
        self._steps = 0
        self._before = Comparison()
        self._last: Forward | None = None  # of the last step that was timed
        self._plain_ago, self._patience = (
            0,
            self.STALE,
        )  # steps since a plain one, and how many may be
        self._gain = 1.0  # tokens per cost of drafted steps, on average; 1 is taken for one of them
        self._drafted = 1  # how many there were, that one included
        self._rejected = 0.0  # drafted steps in a row without an accepted token; decaying
        self._since_plain = 0  # the same, since a plain step
        self._chains: tuple[tuple[int, int], Float32] | None = None
        self._seen: tuple[Float32, float] | None = None
        self.curve = curve_of(model, kind, saved)

    def at(self, length: int, pending: int | None = None) -> None:
        """Use the costs in contexts of ``length`` positions from the next step on.

        Args:
            length: of the context.
            pending: accepted tokens that the next forward runs again, in front of the last
                committed one; None: a rejected draft never leaves any.
        """
        self._length, self._pending = length, pending

    def plain(self) -> bool:
        """Whether the next step should be a plain one, to time it."""
        self._steps += 1
        self._plain_ago += 1
        if not self._long or self._last is None or self._last.width == 1:
            return False
        if self._plain_ago > self._patience or self.curve.learned.count(1) < self.PROBES:
            return True
        unsure = self.curve.learned.deviation(self._last)
        matters = unsure > self.UNSURE and self._gain < np.exp(self.DOUBT * unsure)
        return bool(matters) or self._since_plain >= self.REJECTED

    def chains(self) -> Float32:
        """cost[n] of n positions without branches, in forwards of one, float32 (limit + 1,)."""
        key = self.curve.learned.steps, self._length // NEAR
        if self._chains is None or key != self._chains[0]:
            self._chains = key, self.curve.cost(self.limit, self._length)
        return self._chains[1]

    def cost(self) -> Float32:
        """The least cost of n or more positions, with the margin, float32 (limit + 1,).

        It is at least 1: no draft makes a forward cheaper.
        """
        margin = min(self.MARGIN + self.RISE * self._rejected, self.MOST)
        seen = self._priced(), margin
        if self._seen is None or self._seen[0] is not seen[0] or self._seen[1] != margin:
            self._seen = seen
            envelope = np.minimum.accumulate(seen[0][self._run][::-1])[::-1].copy()
            envelope[1] = 1.0
            envelope[2:] = np.maximum(envelope[2:], 1.0) * (1.0 + margin)
            self._envelope: Float32 = envelope
        return self._envelope

    def _priced(self) -> Float32:
        """``chains``, with what pending tokens cost, in steps without a draft.

        They widen the forward of any step. A plain step leaves none of them. A draft that is not
        accepted as a whole leaves all of them, and those that it was right in, to the next step.
        """
        cost = self.chains()
        if self._pending is None:
            return cost
        last = len(cost) - 1
        wider = cost[np.minimum(np.arange(last + 1) + self._pending, last)]
        left = max(float(cost[min(self._pending + 3, last)]) - float(cost[1]), 0.0)
        wider[2:] += self._undone * left
        priced: Float32 = wider / wider[1]
        return priced

    def surcharge(self) -> float:
        """By what the cost of a forward is multiplied if its draft has branches, >= 1."""
        return self.curve.surcharge(self._length) if self.kind.tree else 1.0

    def width(self, positions: int, room: int) -> int:
        """How many positions to run where ``positions`` are needed and ``room`` fit."""
        last = min(room, self.limit)
        if positions >= last or positions == 1 or self._sizes:
            return positions
        cost, count = self.chains(), self.curve.learned.count
        widths = [each for each in range(positions + 1, last + 1) if count(each) > 1]
        best = min(widths, key=lambda each: cost[each], default=positions)
        return best if cost[best] < PAYS * cost[positions] else positions

    def record_time(self, width: int, seconds: float, tree: bool = False) -> None:
        """Add a step's time, unless something was compiled in it.

        Args:
            width: positions of its forward.
            seconds: what the step took.
            tree: whether the forward had a tree's mask.
        """
        if self._steps < 2:  # the first one after a prefill finds caches cold
            return
        forward = Forward(int(self._run[min(width, self.limit)]), self._length, tree)
        likely = self.curve.learn(self._before, forward, seconds, self.limit)
        self._last = forward
        if forward.width == 1:
            self._plain_ago = 0
            self._patience = self.STALE if likely > 0.5 else self.AGAIN

    def record_acceptance(self, drafted: int, accepted: int) -> None:
        """Count a step's drafted and accepted tokens, over all rows; after ``record_time``."""
        if drafted:
            self._undone += (1 - self.MEMORY) * ((accepted < drafted) - self._undone)
        if drafted and self._last is not None:
            cost, plain = self.chains(), min(1 + (self._pending or 0), self.limit)
            times = max(float(cost[self._last.width] / cost[plain]), 1.0)
            gained = (1 + accepted / self.kind.rows) / times
            self._drafted += 1
            self._gain += max(1 / self._drafted, self.NEWEST) * (gained - self._gain)
        if not drafted:
            self._rejected = max(self._rejected - self.FALL, 0.0)
            self._since_plain = 0
        elif accepted:
            self._rejected, self._since_plain = 0.0, 0
        else:
            self._rejected = min(self._rejected + 1.0, (self.MOST - self.MARGIN) / self.RISE)
            self._since_plain += 1
