"""What a forward of n positions costs here, measured on the steps while they run.

cost(n) is the time of a forward of n positions divided by that of one. It depends on the machine,
the model, its dtype, the batch and, coarsely, the context's length; it is neither smooth nor
monotone. A curve begins as assumed (or as saved by ``ngramspec calibrate``), and every step that
runs corrects it at its width and, less, around it. Curves live as long as the process, one set for
each model, so that a new Speculator begins with what is known.

A machine that is shared runs faster and slower by turns. So a step is compared with those just
before it, whatever their widths, and not with one of a minute ago. And as a curve can be wrong for
a while, drafts have to promise more than they cost, by a margin that rises while none of them
stands.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from ngramspec.controller import assumed_cost
from ngramspec.draft import Float32

logger = logging.getLogger("ngramspec")

KEPT = 9  # latest times of each width: their median counts
EVERY = 8  # added times between two readings of them
FADE = 256.0  # added times after which a width's own evidence counts half
BELIEF = 1.0  # a width's times count k / (k + BELIEF) against what was assumed
PAYS = 0.98  # a wider forward runs in place of a narrower one if it costs at most this share of it
WRONG = 1.5  # times what was saved: then the file is not of this machine as it is now
SURE = 4  # times of a width that can tell
SHORTEST = 512  # contexts up to here share a curve; behind, each doubling has its own


class CostCurve:
    """The measured times of one kind of forward. Threads may share it.

    Args:
        assumed: float32 (limit + 1,), the cost of n positions until it is measured; index 0 unused.
        otherwise: to assume instead, once a width turns out to cost ``WRONG`` times what was
            assumed, or a share as small; None: nothing else is known.
    """

    def __init__(self, assumed: Float32, otherwise: Float32 | None = None) -> None:
        self.assumed = assumed
        self.dropped = False  # whether what was saved turned out wrong
        self._otherwise = otherwise
        self._times: dict[int, deque[float]] = {}
        self._lent: dict[int, deque[float]] = {}  # times of another kind of forward
        self._when: dict[int, int] = {}  # how many times had been added when a width's last was
        self._added = 0
        self._read = -1
        self._cost = assumed
        self._lock = threading.Lock()

    def add(self, width: int, time: float, *, lent: bool = False) -> None:
        """Take note that a forward of ``width`` positions took ``time``, in any unit.

        Args:
            lent: whether it was of another kind, which counts until there are ``SURE`` of this.
        """
        with self._lock:
            times = self._lent if lent else self._times
            times.setdefault(width, deque(maxlen=KEPT)).append(time)
            self._added += 1
            self._when[width] = self._added

    def _of(self, width: int) -> deque[float]:
        """The times that count for a width: its own, or while they are few, those lent."""
        own, lent = self._times.get(width, deque()), self._lent.get(width, deque())
        return own if len(own) >= SURE or not lent else lent

    def count(self, width: int) -> int:
        """How many times of a width are kept."""
        return len(self._times.get(width, ()))

    def reach(self, assumed: Float32) -> None:
        """Be known as far as ``assumed``, like it in shape beyond what is known."""
        with self._lock:
            known = len(self.assumed)
            if known < len(assumed):
                rest = assumed[known:] * (self.assumed[-1] / assumed[known - 1])
                self.assumed = np.concatenate((self.assumed, rest)).astype(np.float32)
                self._read = -1

    def since(self, width: int) -> int:
        """How many times have been added since a width's last one."""
        return self._added - self._when.get(width, 0)

    def expected(self, width: int) -> float:
        """The time of a forward of ``width``, in the unit of ``add``: as it was, or as assumed."""
        with self._lock:
            times, plain = self._of(width), self._of(1)
            if times:
                return median(times)
            one = median(plain) if plain else 1.0
        return one * float(self.cost()[width])

    def cost(self) -> Float32:
        """float32 (limit + 1,), of n positions in forwards of one; read anew now and then."""
        with self._lock:
            due = self._added - self._read >= EVERY or self._added < EVERY
            if due and self._added != self._read:
                self._cost = self._measured()
                self._read = self._added
            return self._cost

    def _measured(self) -> Float32:
        """The assumed curve, corrected by the widths that ran and between them."""
        known = sorted(self._times.keys() | self._lent.keys())
        widths = np.array([each for each in known if each < len(self.assumed)])
        if not widths.size:
            return self.assumed
        medians = np.array([median(self._of(width)) for width in widths])
        expected = self.assumed[widths].astype(np.float64)
        one = medians[0] if widths[0] == 1 else float(np.median(medians / expected))
        kept = np.array([len(self._of(width)) for width in widths], np.float64)
        own = np.array([self.count(width) for width in widths])
        far = np.abs(np.log(medians / (one * expected)))[own >= SURE]
        if self._otherwise is not None and widths[0] == 1 and far.max(initial=0.0) > np.log(WRONG):
            logger.warning("saved costs are not what forwards take here; measuring anew")
            longer = CostCurve(self._otherwise)
            longer.reach(self.assumed)
            self.assumed, self._otherwise, self.dropped = longer.assumed, None, True
            return self._measured()
        age = np.array([self._added - self._when[width] for width in widths], np.float64)
        evidence = kept * 0.5 ** (age / FADE)
        off = np.log(medians / (one * expected)) * evidence / (evidence + BELIEF)
        if widths[0] != 1:
            widths, off = np.append(1, widths), np.append(0.0, off)
        else:
            off[0] = 0.0
        correction = np.interp(np.arange(len(self.assumed)), widths, off)
        cost: Float32 = (self.assumed * np.exp(correction)).astype(np.float32)
        return cost


class Saved(Protocol):
    """Costs measured ahead."""

    def curve(self, length: int, limit: int) -> Float32:
        """float32 (limit + 1,) for contexts of about ``length`` positions."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What forwards of one model have in common that share a curve.

    Attributes:
        machine: "cpu" or "gpu".
        dtype: of the model, by name.
        rows: of the batch.
        attention: the model's implementation, by name.
        static: whether the cache is.
        compiled: whether the forwards are.
        tree: whether drafts have branches, and forwards masks of their own.
    """

    machine: str
    dtype: str
    rows: int = 1
    attention: str = "sdpa"
    static: bool = False
    compiled: bool = False
    tree: bool = False

    def assumed(self, limit: int) -> Float32:
        """float32 (limit + 1,): what they cost until they are measured."""
        return assumed_cost(self.machine, limit - 1, self.rows, self.dtype)


class Pace:
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
        kind: Kind,
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


_curves: WeakKeyDictionary[Any, dict[tuple[Kind, int], CostCurve]] = WeakKeyDictionary()
_lock = threading.Lock()


def curve_of(
    model: Any, kind: Kind, octave: int, limit: int, saved: Saved | None = None
) -> CostCurve:
    """The curve of a kind of a model's forwards, of which there is one for the whole process.

    One that is new begins as saved, unless that turned out wrong at another context length; or as
    the one of the nearest length is now; or, of trees, as that of chains; or as assumed.

    Args:
        model: whose forwards they are.
        kind: of forwards.
        octave: of the context's length.
        limit: most positions of a forward, at least.
        saved: costs to begin with, or None.
    """
    with _lock:
        known = _curves.setdefault(model, {})
        curve = known.get((kind, octave))
        if curve is None:
            assumed = kind.assumed(limit)
            others = {at: each for (of, at), each in known.items() if of == kind}
            chains = known.get((replace(kind, tree=False), octave))
            if saved is not None and not any(each.dropped for each in others.values()):
                curve = CostCurve(saved.curve(1 << octave, limit), assumed)
            elif others:
                curve = CostCurve(others[min(others, key=lambda at: abs(at - octave))].cost())
            else:
                curve = CostCurve(assumed if chains is None else chains.cost())
            known[kind, octave] = curve
    curve.reach(kind.assumed(limit))
    return curve
