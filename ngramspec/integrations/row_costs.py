"""What a step of an engine costs, by its rows and by the tokens drafted in all of them.

A step of R rows takes as long as it takes; each drafted token adds a position. How much that is
depends on R: on a GPU positions are nearly free up to some hundreds, on a CPU every one is paid.
So there is a curve for each number of rows, over the drafted tokens of the whole batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from ngramspec._native.batch_choice import curve_through
from ngramspec.draft import Float32
from ngramspec.draft_length.cost_curve import assumed_cost

MOST_DRAFTED = 1024  # tokens in a batch; the curve's last value holds behind


class BatchCosts(Protocol):
    """The costs that ``Rows`` goes by. One thread at a time."""

    def curve(self, rows: int) -> Float32 | None:
        """float32 (n,): [d] of a step of ``rows`` rows and d drafted tokens, in all, n >= 1.

        In steps without a draft, so [0] is 1. None: nothing is to be drafted in this step.
        """

    def took(self, rows: int, drafted: int, seconds: float) -> None:
        """A step of ``rows`` rows and ``drafted`` tokens took so long."""


def rounded_rows(rows: int) -> int:
    """The number of rows whose curve is used: all up to 8, then steps of a quarter or less."""
    if rows <= 8:
        return rows
    unit = 1 << (rows.bit_length() - 3)
    return -(-rows // unit) * unit


class GivenCosts:
    """Curves from a table.

    Args:
        table: number of rows -> drafted tokens in all rows -> time of the step, in steps of as
            many rows without a draft. Linear in between and behind; for other numbers of rows the
            nearest one's.

    Raises:
        ValueError: which entry is wrong.

    Example:
        >>> GivenCosts({1: {4: 1.25, 8: 1.75}}).curve(2)[[0, 4, 8, 12]].tolist()
        [1.0, 1.25, 1.75, 2.25]
    """

    def __init__(self, table: Mapping[int, Mapping[int, float]]) -> None:
        if not table:
            raise ValueError("costs must name at least one number of rows, got none")
        self._curves = {int(rows): _given(int(rows), points) for rows, points in table.items()}

    def curve(self, rows: int) -> Float32 | None:
        return self._curves[min(self._curves, key=lambda known: (abs(known - rows), known))]

    def took(self, rows: int, drafted: int, seconds: float) -> None:
        return None


def _given(rows: int, points: Mapping[int, float]) -> Float32:
    if rows < 1:
        raise ValueError(f"costs: rows must be >= 1, got {rows}")
    known = sorted((int(drafted), float(cost)) for drafted, cost in points.items())
    for drafted, cost in known:
        if drafted < 1 or not 0 < cost < float("inf"):
            raise ValueError(
                f"costs of {rows} rows: drafted must be >= 1 and its cost > 0 and finite,"
                f" got {drafted}: {cost}"
            )
    if not known:
        raise ValueError(f"costs of {rows} rows must have at least one entry, got none")
    x, y = (np.array(each) for each in zip((0, 1.0), *known, strict=True))
    at = np.arange(MOST_DRAFTED + 1)
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
    curve: Float32 = (np.interp(at, x, y) + slope * np.maximum(at - x[-1], 0)).astype(np.float32)
    return curve


class LearnedCosts:
    """Curves learned from the engine's own steps.

    A number of rows that was never seen begins with the curve of the nearest that was, read over
    the positions of the whole step; the first with what is assumed of the device.

    Args:
        k: most drafted tokens of a row.
        device: "cpu" or "gpu".
        dtype: of the model, by name.
        slope: what a drafted token costs until that is measured, in steps without a draft, instead
            of what is assumed of the device; None: that.
    """

    def __init__(
        self,
        k: int,
        device: str = "gpu",
        dtype: str = "bfloat16",
        *,
        slope: float | None = None,
    ) -> None:
        self._k = k
        self._device = device
        self._dtype = dtype
        self._slope = slope
        self._known: dict[int, RowsCost] = {}
        self._steps = 0

    def curve(self, rows: int) -> Float32 | None:
        return self._of(rounded_rows(rows)).plan()

    def cost(self, rows: int, drafted: int) -> float:
        """Of a step as measured so far, in steps without a draft."""
        known = self._of(rounded_rows(rows)).cost()
        return float(known[min(drafted, len(known) - 1)])

    def took(self, rows: int, drafted: int, seconds: float) -> None:
        self._steps += 1
        self._of(rounded_rows(rows)).took(drafted, seconds, self._steps)

    def _of(self, rows: int) -> RowsCost:
        known = self._known.get(rows)
        if known is None:
            known = self._known[rows] = RowsCost(rows, self._begin(rows))
        return known

    def _begin(self, rows: int) -> Float32:
        """float32 (n,): [d] the cost of d drafted tokens until it is measured."""
        most = min(rows * self._k, MOST_DRAFTED)
        timed = [each for each, cost in self._known.items() if cost.timed]
        if timed:
            nearest = min(timed, key=lambda each: abs(each - rows))
            whole = _over_positions(self._known[nearest].cost(), nearest, rows + most)
        elif self._slope is not None:
            return (1.0 + self._slope * np.arange(most + 1)).astype(np.float32)
        else:
            whole = assumed_cost(self._device, rows + most - 1, dtype=self._dtype)
        curve: Float32 = (whole[rows : rows + most + 1] / whole[rows]).astype(np.float32)
        return curve


def _over_positions(curve: Float32, rows: int, most: int) -> Float32:
    """A curve of ``rows`` rows as one over all positions of a step, float32 (most + 1,)."""
    last = len(curve) - 1
    at = np.arange(most + 1)
    whole = np.interp(at, rows + np.arange(last + 1), curve)
    slope = float(curve[-1] - 1) / last if last else 0.0
    whole += slope * np.maximum(at - rows - last, 0)
    first = float(curve[1] - 1) if last else 0.0
    positions: Float32 = np.maximum(whole - first * np.maximum(rows - at, 0), 0.01)
    return positions.astype(np.float32)


class RowsCost:
    """The steps of one number of rows.

    A step's time is compared with those of the steps just before it, whatever they drafted, so
    that neither longer contexts nor a busy machine are taken for the cost of drafts. Times are
    kept by the drafted tokens, in classes; the curve goes through the median of each class, is
    linear in between, and never falls. Times far above what is expected are left out: the engine
    paused.

    Args:
        rows: their number.
        assumed: float32 (n,), [d] the cost of d drafted tokens until it is measured.
    """

    PROBES = 2  # steps without a draft to begin with
    STALE = 128  # steps after which another one is run to be timed,
    PATIENCE = 6  # or so many in a row, if they cannot be timed
    RECENT = 8  # steps that the next one is compared with
    OLD = 64  # steps with other numbers of rows, after which those before say nothing
    KEPT = 9  # latest times of a class: their median counts
    FADE = 512.0  # steps after which a class's evidence counts half
    BELIEF = 0.25  # a class's times count k / (k + BELIEF) against what was assumed
    PAUSE = 2.5  # times the most that is expected: the engine did something else,
    BELIEVED = 3  # unless so many steps in a row take that long
    MARGIN = 0.02  # by which a draft must be worth more than it costs

    def __init__(self, rows: int, assumed: Float32) -> None:
        self._rows = rows
        self._assumed = assumed
        self._times: dict[int, deque[tuple[int, float]]] = {}  # class -> (drafted, relative time)
        self._middle: dict[int, tuple[float, float]] = {}  # class -> mean drafted, median time
        self._when: dict[int, int] = {}  # class -> step of its last time
        self._recent: deque[float] = deque(maxlen=self.RECENT)  # seconds by what steps cost
        self._pauses = 0  # in a row
        self._timed = 0  # steps
        self._last = 0  # the step that was timed last
        self._waits = 0  # for a step without a draft to be timed
        self._cost, self._usable = assumed, assumed
        self._read = -1

    @property
    def timed(self) -> bool:
        """Whether a step without a draft was timed."""
        return 0 in self._times

    def plan(self) -> Float32 | None:
        """The curve to draft by, or None where a step without a draft is to be timed."""
        due = len(self._times.get(0, ())) < self.PROBES
        due = due or self._timed - self._when.get(0, 0) > self.STALE
        if due and self._waits < self.PATIENCE:
            self._waits += 1
            return None
        self.cost()
        return self._usable

    def cost(self) -> Float32:
        """float32 (n,), as measured so far; [0] is 1."""
        if self._read != self._timed:
            self._read = self._timed
            self._cost = self._measured()
            self._usable = self._cost * np.float32(1.0 + self.MARGIN)
            self._usable[0] = 1.0
        return self._cost

    def _measured(self) -> Float32:
        if 0 not in self._times:
            return self._assumed
        one = self._middle[0][1]
        x, y = [0.0], [1.0]
        for which in sorted(self._times.keys() - {0}):
            drafted, time = self._middle[which]
            evidence = len(self._times[which]) * 0.5 ** (
                (self._timed - self._when[which]) / self.FADE
            )
            share = evidence / (evidence + self.BELIEF)
            below = int(drafted)
            part = drafted - below
            above = min(below + 1, len(self._assumed) - 1)
            assumed = float((1 - part) * self._assumed[below] + part * self._assumed[above])
            x.append(drafted)
            y.append(share * time / one + (1 - share) * assumed)
        return self._assumed if len(x) == 1 else curve_through(x, y, len(self._assumed))

    def took(self, drafted: int, seconds: float, step: int) -> None:
        """A step with so many drafted tokens took so long; ``step`` is its number."""
        if step - self._last > self.OLD:
            self._recent.clear()
        self._last = step
        drafted = min(drafted, len(self._assumed) - 1)
        which = _class_of(drafted)
        time = seconds / _median(self._recent) if self._recent else None
        if time is not None and self._paused(which, drafted, time):
            return
        self._pauses = 0
        if drafted == 0:
            self._waits = 0
        if time is not None:
            self._timed += 1
            times = self._times.setdefault(which, deque(maxlen=self.KEPT))
            times.append((drafted, time))
            tokens = sum([each for each, _ in times]) / len(times)
            self._middle[which] = (tokens, _median([each for _, each in times]))
            self._when[which] = self._timed
        self._recent.append(seconds / self._expected(which, drafted))

    def _expected(self, which: int, drafted: int) -> float:
        """A step's time in the unit of those kept: as it was, or as the curve says."""
        middle = self._middle.get(which)
        return middle[1] if middle else float(self.cost()[drafted])

    def _paused(self, which: int, drafted: int, time: float) -> bool:
        """Whether so long a time says nothing of the step."""
        usual = float(self.cost()[drafted])
        if which not in self._times:  # it may cost as much as all its positions do
            usual = max(usual, (self._rows + drafted) / self._rows)
        if time <= self.PAUSE * usual:
            return False
        self._pauses += 1
        if self._pauses < self.BELIEVED:
            return True
        self._recent.clear()
        return False


def _class_of(drafted: int) -> int:
    """Numbers of drafted tokens whose times are kept together: all up to 4, then by the half."""
    if drafted <= 4:
        return drafted
    return 2 * drafted.bit_length() + (drafted >> (drafted.bit_length() - 2) & 1)


def _median(values: Iterable[float]) -> float:
    """Of at least one value; ``statistics.median`` takes four times as long."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
