"""How wide one generation's forwards run, by what its steps cost.

A shared machine runs faster and slower by turns. So a step is compared with those just before it,
whatever their widths. And because a curve can be wrong for a while, drafts must promise more than
they cost, by a margin that grows with each drafted step of which no token is accepted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from ngramspec.draft import Float32
from ngramspec.draft_length.cost_curve import SHORTEST, ForwardKind, Saved, curve_of

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
    """

    PROBES = 2  # plain steps at the beginning, if none was ever timed
    LONG = 48  # tokens from which a generation is long enough for them
    STALE = 128  # steps without a plain one after which one is run to be timed
    REJECTED = 8  # drafted steps without an accepted token after which one is
    RECENT = 8  # steps that the next one is compared with
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
        self._kind = kind
        self._run = np.arange(limit + 1)  # int64 (limit + 1,): the width that n positions run at
        if sizes:
            places = np.searchsorted(sizes, self._run).clip(max=len(sizes) - 1)
            self._run = np.minimum(np.array(sizes)[places], limit)
        self._sizes = sizes
        self._model = model
        self._limit = limit
        self._saved = saved
        self._long = tokens >= self.LONG
        self._octave = -1
        self._steps = 0
        self._recent: deque[float] = deque(maxlen=self.RECENT)  # seconds / expected seconds
        self._rejected = 0.0  # drafted steps in a row without an accepted token; decaying
        self._since_plain = 0  # the same, since a plain step
        self._seen: tuple[Float32, float] | None = None
        self.at(0)

    def at(self, length: int) -> None:
        """Use the curve of contexts of ``length`` positions from the next step on."""
        octave = max(length - 1, SHORTEST - 1).bit_length()
        if octave != self._octave:
            self._octave = octave
            known = (octave, self._limit, self._saved)
            chains = replace(self._kind, tree=False)
            self.curve = curve_of(self._model, chains, *known)
            self.trees = curve_of(self._model, self._kind, *known)  # the same, if there are none

    def plain(self) -> bool:
        """Whether the next step should be a plain one, to time it."""
        self._steps += 1
        if not self._long:
            return False
        return (
            self._since_plain >= self.REJECTED
            or self.curve.count(1) < self.PROBES
            or self.curve.since(1) > self.STALE
        )

    def cost(self) -> Float32:
        """The least cost of n or more positions, with the margin, float32 (limit + 1,).

        It is at least 1: no draft makes a forward cheaper.
        """
        cost, margin = self.trees.cost(), min(self.MARGIN + self.RISE * self._rejected, self.MOST)
        if self._seen is None or cost is not self._seen[0] or margin != self._seen[1]:
            self._seen = cost, margin
            envelope = np.minimum.accumulate(cost[self._run][::-1])[::-1].copy()
            envelope[1] = 1.0
            envelope[2:] = np.maximum(envelope[2:], 1.0) * (1.0 + margin)
            self._envelope: Float32 = envelope
        return self._envelope

    def width(self, positions: int, room: int) -> int:
        """How many positions to run where ``positions`` are needed and ``room`` fit."""
        cost = self.curve.cost()
        last = min(room, self._limit)
        if positions >= last or positions == 1 or self._sizes:
            return positions
        widths = [each for each in range(positions + 1, last + 1) if self.curve.count(each) > 1]
        best = min(widths, key=lambda each: cost[each], default=positions)
        return best if cost[best] < PAYS * cost[positions] else positions

    def took(self, width: int, seconds: float, tree: bool = False) -> None:
        """Add a step's time, unless something was compiled in it.

        Args:
            width: positions of its forward.
            seconds: what the step took.
            tree: whether the forward had a tree's mask.
        """
        width = int(self._run[min(width, self._limit)])
        if self._steps < 2:  # the first one after a prefill finds caches cold
            return
        curve = self.trees if tree else self.curve
        if self._recent:
            time = seconds / median(self._recent)
            curve.add(width, time)
            if curve is not self.trees:
                self.trees.add(width, time, lent=width > 1)
        self._recent.append(seconds / curve.expected(width))

    def came(self, drafted: int, accepted: int) -> None:
        """Count a step's drafted and accepted tokens, over all rows."""
        if not drafted:
            self._rejected = max(self._rejected - self.FALL, 0.0)
            self._since_plain = 0
        elif accepted:
            self._rejected, self._since_plain = 0.0, 0
        else:
            self._rejected = min(self._rejected + 1.0, (self.MOST - self.MARGIN) / self.RISE)
            self._since_plain += 1
