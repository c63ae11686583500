"""What a forward of n positions costs in forwards of one: assumed, then measured.

cost(n) depends on the machine, the model, its dtype, the batch and, coarsely, the context's
length; it is neither smooth nor monotone. A curve starts as assumed (or as saved by ``ngramspec
calibrate``), and every step corrects it at its width and, less, around it. Curves live as long as
the process, one set for each model, so that a new Speculator starts with what was measured.
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

from ngramspec.draft import Float32

logger = logging.getLogger("ngramspec")

# What a forward of n positions costs, in forwards of one position: linear between these points.
POSITIONS = (1, 2, 3, 5, 8, 11, 16, 24, 32, 48, 64, 128)
COSTS = {
    # drafters are compared by these two; measured: SmolLM2-135M, bfloat16, two CPU cores
    "cpu": (1, 1, 1, 1.0, 1.04, 1.10, 1.22, 1.40, 1.60, 2.0, 2.7, 5.0),
    # assumed: a model of 7-8 billion parameters on one data-centre GPU
    "gpu": (1, 1, 1, 1.0, 1.0, 1.0, 1.01, 1.02, 1.03, 1.05, 1.07, 1.15),
    # where generations start from: the same model and cores, measured beside plain steps
    "cpu bfloat16": (1, 1.03, 1.04, 1.05, 1.07, 1.10, 1.14, 1.21, 1.29, 1.52, 1.65, 3.0),
    "cpu float32": (1, 1.05, 1.12, 1.5, 1.75, 2.1, 1.97, 2.25, 2.5, 3.0, 3.4, 6.2),
}
BATCH_SURCHARGE = 0.2  # of a second position in each row, but in bfloat16: measured on the same CPU

KEPT = 9  # latest times of each width: their median counts
EVERY = 8  # added times after which the curve is computed again
FADE = 256.0  # added times after which a width's own times count half
BELIEF = 1.0  # k times of a width count k / (k + BELIEF) against what was assumed
WRONG = 1.5  # factor between saved and measured costs from which the saved ones are dropped
SURE = 4  # times of a width that are enough for that
SHORTEST = 512  # contexts up to here share a curve; behind, each doubling has its own


def assumed_cost(kind: str, gamma_max: int, rows: int = 1, dtype: str = "bfloat16") -> Float32:
    """A cost curve from ``COSTS``.

    Args:
        kind: "cpu" or "gpu".
        gamma_max: most tokens in a draft.
        rows: of the batch.
        dtype: of the model, by name; in float32 a position costs a CPU more.

    Returns:
        float32 (gamma_max + 2,), cost[n] of a forward of n positions in each row, in forwards of
        one position in each row; linear behind the last point.
    """
    points = (*POSITIONS, 2 * POSITIONS[-1])
    known = COSTS.get(f"{kind} {dtype}", COSTS[kind])
    costs = (*known, known[-1] + 2 * (known[-1] - known[-2]))
    per_position = (costs[-1] - costs[-2]) / (points[-1] - points[-2])
    positions = rows * np.arange(gamma_max + 2)
    curve = np.interp(positions, points, costs)
    curve += per_position * np.maximum(positions - points[-1], 0)
    cost: Float32 = (curve / curve[1]).astype(np.float32)
    if rows > 1 and dtype != "bfloat16":
        cost[2:] += BATCH_SURCHARGE
    return cost


class CostCurve:
    """The measured times of one kind of forward.

    Adding a time costs O(1), reading the curve O(limit) every ``EVERY`` times, else O(1). Memory:
    KEPT times for each width that ran. Thread-safe: one lock guards the times.

    Args:
        assumed: float32 (limit + 1,), the cost of n positions until it is measured; index 0 unused.
        otherwise: float32 (limit + 1,), assumed instead once a width costs ``WRONG`` times more or
            less than ``assumed`` says; None: never.
    """

    def __init__(self, assumed: Float32, otherwise: Float32 | None = None) -> None:
        self.assumed = assumed
        self.dropped = False  # whether ``assumed`` was wrong and ``otherwise`` took its place
        self._otherwise = otherwise
        self._times: dict[int, deque[float]] = {}
        self._lent: dict[int, deque[float]] = {}  # times of another kind of forward
        self._when: dict[int, int] = {}  # width -> the value of _added at its last time
        self._added = 0
        self._read = -1
        self._cost = assumed
        self._lock = threading.Lock()

    def add(self, width: int, time: float, *, lent: bool = False) -> None:
        """Add the time of a forward of ``width`` positions, in any unit.

        Args:
            width: positions, >= 1.
            time: what it took.
            lent: whether the forward was of another kind: it counts until a width has ``SURE``
                times of its own.
        """
        with self._lock:
            times = self._lent if lent else self._times
            times.setdefault(width, deque(maxlen=KEPT)).append(time)
            self._added += 1
            self._when[width] = self._added

    def _of(self, width: int) -> deque[float]:
        """The times that count for a width: its own, or the lent ones while those are few."""
        own, lent = self._times.get(width, deque()), self._lent.get(width, deque())
        return own if len(own) >= SURE or not lent else lent

    def count(self, width: int) -> int:
        """How many times of a width are kept."""
        return len(self._times.get(width, ()))

    def begin_with(self, cost: Float32) -> None:
        """Assume ``cost``, float32 (limit + 1,), unless a time was added."""
        with self._lock:
            if not self._added and len(cost) == len(self.assumed):
                self.assumed = self._cost = cost

    def reach(self, assumed: Float32) -> None:
        """Extend the curve to the length of ``assumed``, with its shape, float32 (limit + 1,)."""
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
        """The time of a forward of ``width`` positions, in the unit of ``add``."""
        with self._lock:
            times, plain = self._of(width), self._of(1)
            if times:
                return median(times)
            one = median(plain) if plain else 1.0
        return one * float(self.cost()[width])

    def cost(self) -> Float32:
        """cost[n] of a forward of n positions in forwards of one, float32 (limit + 1,)."""
        with self._lock:
            due = self._added - self._read >= EVERY or self._added < EVERY
            if due and self._added != self._read:
                self._cost = self._measured()
                self._read = self._added
            return self._cost

    def _measured(self) -> Float32:
        """The assumed curve, corrected at the widths that ran and between them."""
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
    """Costs measured beforehand."""

    def curve(self, length: int, limit: int) -> Float32:
        """float32 (limit + 1,) for contexts of about ``length`` positions."""


@dataclass(frozen=True, slots=True)
class ForwardKind:
    """What forwards of one model that share a curve have in common.

    Attributes:
        machine: "cpu" or "gpu".
        dtype: of the model, by name.
        rows: of the batch.
        attention: the model's implementation, by name.
        static: whether the cache is static.
        compiled: whether the forwards are compiled.
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
        """float32 (limit + 1,): what these forwards cost until they are measured."""
        return assumed_cost(self.machine, limit - 1, self.rows, self.dtype)


_curves: WeakKeyDictionary[Any, dict[tuple[ForwardKind, int], CostCurve]] = WeakKeyDictionary()
_lock = threading.Lock()


def curve_of(
    model: Any, kind: ForwardKind, octave: int, limit: int, saved: Saved | None = None
) -> CostCurve:
    """The curve of a kind of a model's forwards: one for the whole process.

    A new curve starts from the first available: the saved file (unless another context length
    contradicted it), the nearest context length, the chain curve (for trees), the defaults.

    Args:
        model: that runs the forwards.
        kind: of forwards.
        octave: doubling of the context's length.
        limit: positions that the curve has to reach.
        saved: costs to start with, or None.
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
