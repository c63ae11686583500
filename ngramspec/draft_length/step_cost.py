"""How wide one generation's forwards run, by what its steps cost.

A machine that is shared runs faster and slower by turns. So a step is compared with those just
before it, whatever their widths, and not with one of a minute ago. And as a curve can be wrong for
a while, drafts have to promise more than they cost, by a margin that rises while none of them is
accepted.
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
    """How wide one generation's forwards run: its costs as they are now.

    Args:
        model: whose forwards they are.
        kind: of forwards.
        limit: most positions of one.
        tokens: how many tokens may be generated: a short generation is not worth probing in.
        saved: costs to begin with in place of the assumed ones, or None.
        sizes: the only widths that forwards run at, ascending; empty: any.
    """

    PROBES = 2  # plain steps at the beginning, if none was ever timed
    LONG = 48  # tokens of a generation that is worth them
    STALE = 128  # steps without a plain one, after which one is run to be timed,
    VAIN = 8  # and drafted ones of which nothing stood
    RECENT = 8  # steps that the next one is compared with
    MARGIN = 0.02  # by which a draft's tokens per cost have to be above a plain step's,
    RISE = 0.01  # more for each drafted step in vain,
    MOST = 0.2  # at most;
    FALL = 1 / 16  # of such a step, forgotten at each undrafted one

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
        self._run = np.arange(limit + 1)  # the width that so many positions run at
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
        self._recent: deque[float] = deque(maxlen=self.RECENT)  # seconds by what widths cost
        self._vain = 0.0  # drafted steps of which nothing stood, since something did; fading
        self._misses = 0  # those since a plain step
        self._seen: tuple[Float32, float] | None = None
        self.at(0)

    def at(self, length: int) -> None:
        """Go by the curve of contexts of ``length`` positions, from the next step on."""
        octave = max(length - 1, SHORTEST - 1).bit_length()
        if octave != self._octave:
            self._octave = octave
            known = (octave, self._limit, self._saved)
            chains = replace(self._kind, tree=False)
            self.curve = curve_of(self._model, chains, *known)
            self.trees = curve_of(self._model, self._kind, *known)  # the same, if there are none

    def plain(self) -> bool:
        """Whether the next step should be a plain one, to know what drafting is measured by."""
        self._steps += 1
        if not self._long:
            return False
        return (
            self._misses >= self.VAIN
            or self.curve.count(1) < self.PROBES
            or self.curve.since(1) > self.STALE
        )

    def cost(self) -> Float32:
        """float32 (limit + 1,): the least that n positions or more cost, with the margin.

        No draft is believed to make a forward cheaper.
        """
        cost, margin = self.trees.cost(), min(self.MARGIN + self.RISE * self._vain, self.MOST)
        if self._seen is None or cost is not self._seen[0] or margin != self._seen[1]:
            self._seen = cost, margin
            envelope = np.minimum.accumulate(cost[self._run][::-1])[::-1].copy()
            envelope[1] = 1.0
            envelope[2:] = np.maximum(envelope[2:], 1.0) * (1.0 + margin)
            self._envelope: Float32 = envelope
        return self._envelope

    def width(self, positions: int, room: int) -> int:
        """How many positions to run where so many are needed, and at most ``room`` fit."""
        cost = self.curve.cost()
        last = min(room, self._limit)
        if positions >= last or positions == 1 or self._sizes:
            return positions
        widths = [each for each in range(positions + 1, last + 1) if self.curve.count(each) > 1]
        best = min(widths, key=lambda each: cost[each], default=positions)
        return best if cost[best] < PAYS * cost[positions] else positions

    def took(self, width: int, seconds: float, tree: bool = False) -> None:
        """A step's forward of ``width`` positions took ``seconds``; ``tree``: under a tree's mask.

        One in which something was compiled is not to be told of.
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
        """A step's drafts had so many tokens, in all rows, of which so many stood."""
        if not drafted:
            self._vain = max(self._vain - self.FALL, 0.0)
            self._misses = 0
        elif accepted:
            self._vain, self._misses = 0.0, 0
        else:
            self._vain = min(self._vain + 1.0, (self.MOST - self.MARGIN) / self.RISE)
            self._misses += 1
