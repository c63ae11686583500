"""The costs of a generation's next step: alone, in a batch, in a joint step, or in an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ngramspec._native import Comparison
from ngramspec.costs.model import MAX_STEPS_WITHOUT_PLAIN, CostModel
from ngramspec.draft import Float32

CONTEXT_BUCKET = 64  # positions of contexts that share their costs
MAX_JOINT_TOKENS = 128  # drafted tokens of a joint step that have a known cost
# A drafter's estimates are those of earlier texts. Of a text that repeats nothing they expect too
# much, and the best of many estimates is more often too high than too low. So a draft must gain
# MARGIN, a share of a plain step's cost, and its own cost times FACTOR, which grows by 1 with each
# lost draft, up to MAX_LOSSES. Each step repays REPAID. A draft that costs less than CHEAP of a
# plain step loses less.
MARGIN = 0.02
FACTOR, MAX_LOSSES, REPAID, CHEAP = 1.5, 4.0, 0.05, 0.25
MIN_PREFILL_POSITIONS = 32  # the time of a shorter prefill does not predict that of long texts


class JointPart(NamedTuple):
    """What a generation's step costs as a part of a joint step, which is timed as a whole.

    Attributes:
        due: whether the joint step is run without drafts, to be timed.
        required: see ``StepCosts.required_tokens``. A drafted token costs what it adds to the joint
            forward. The unit is the generation's share of a joint step without drafts.
    """

    due: bool
    required: Float32


class StepCosts:
    """The costs of the next step of a generation, a batch or an engine. Not thread-safe.

    A plain step is the cheapest forward that commits one token. Where one position is slow, it is
    padded to more. All costs are relative to it.

    Args:
        model: what the forwards cost.
        limit: maximum width of a forward.
        rows: number of sequences; it may change.
        packed: whether the rows share the drafted tokens of a width, as in joint steps and engines.
            Otherwise each row has that width. Packed forwards are never padded.
        pads: whether forwards may have more positions than are needed.
        sizes: the only widths at which forwards run, ascending. Empty: any width.

    Attributes:
        plain_seconds: average time of a plain step of one row; None: not measured.
        position_seconds: time of a position of the prefill; None: not measured.
    """

    MAX_REJECTED = 8  # drafts in a row, times the timed plain steps, until one more is timed
    MAX_UNTIMED = 6  # steps in a row that are run to be timed and cannot be
    UNDONE = 0.5  # assumed share of drafts that are not accepted whole
    MAX_TRIED = 1.3  # assumed cost of two positions up to which they are tried in a plain step

    def __init__(
        self,
        model: CostModel,
        limit: int,
        *,
        rows: int = 1,
        packed: bool = False,
        pads: bool = True,
        sizes: Sequence[int] = (),
    ) -> None:
        self.model, self.limit, self.rows = model, limit, rows
        self.plain_seconds: float | None = None
        self.position_seconds: float | None = None
        self._packed, self._pads = packed, pads and not packed and not sizes
        self._widths = np.arange(limit + 1).clip(min=1)  # at which n positions run
        if sizes:
            places = np.searchsorted(sizes, self._widths).clip(max=len(sizes) - 1)
            self._widths = np.minimum(np.array(sizes)[places], limit)
        self._length, self._prefill = 0, False
        self._pending: int | None = None
        self._losses = 0.0  # see ``required_tokens``
        self._before = Comparison()
        self._steps = 0
        self._rejected = 0  # drafted steps without an accepted token since the last plain one
        self._tried: dict[tuple[int, int], bool] = {}  # by rows, trials of two positions: again?
        self._untimed = 0
        self.due = False  # whether the current step is run to be timed
        self._cached: dict[str, tuple[Any, Float32]] = {}

    def at(self, length: int, pending: int | None = None, *, prefill: bool = False) -> None:
        """Set the context of the next step.

        Args:
            length: context length in positions.
            pending: accepted tokens that the next forward runs again, before the last committed
                one. None: rejected drafts never leave such tokens.
            prefill: whether the next step is the prefill. A draft only adds its own positions.
        """
        self._length, self._pending, self._prefill = length, pending, prefill

    def plain(self) -> bool:
        """Whether the next step must have no draft and width 1, so that it can be timed."""
        model = self.model
        self._steps += 1
        cold = self._steps < 3 and not self._packed
        wait = MAX_STEPS_WITHOUT_PLAIN
        if self._packed:  # each number of rows has costs of its own
            wait = min(wait, 2 + model.steps // 2)
        elif self._rejected >= self.MAX_REJECTED * model.counts.get((self.rows, self.rows), 0):
            wait = self.MAX_REJECTED  # drafts may only seem to cost nothing
        due = model.since_plain >= wait and self._untimed < self.MAX_UNTIMED
        self.due = due and not cold
        self._untimed += self.due
        return self.due

    def times(self) -> Float32:
        """Times of chains relative to width 1, float32 (limit + 1,): [n] of width n."""
        key = self.model.steps, self._length // CONTEXT_BUCKET, self.rows
        known = self._cached.get("times")
        if known is None or known[0] != key:
            positions = self._positions(self._widths)
            logs = self.model.logs(self.rows, positions, key[1] * CONTEXT_BUCKET)
            known = self._cached["times"] = key, np.exp(logs - logs[1]).astype(np.float32)
        return known[1]

    def required_tokens(self) -> Float32:
        """The tokens that a step of n positions must be expected to yield, float32 (limit + 1,).

        [n] is the cost of n or more positions relative to a plain step, with a margin; [1] is 1.
        """
        cost = self._costs()
        known = self._cached.get("required")
        if known is None or known[0][0] is not cost or known[0][1] != self._losses:
            required = required_tokens(cost, self._losses)
            known = self._cached["required"] = (cost, self._losses), required
        return known[1]

    def share(self) -> Float32:
        """One row's share of ``required_tokens``, float32 (limit + 1,).

        A wider forward may be worth its cost because of other rows. The width is chosen later, when
        all drafts are known.
        """
        return scaled(self.required_tokens(), 1.0 / self.rows)

    def part(self) -> JointPart:
        """What the next step, a joint one, costs each of its generations."""
        return JointPart(self.due, scaled(self.required_tokens(), self.rows))

    def surcharge(self) -> float:
        """Factor on the cost of a forward whose draft has branches, >= 1."""
        return self.model.surcharge(self._length)

    def width(self, positions: int, room: int) -> int:
        """The width to run if ``positions`` are needed and at most ``room`` fit."""
        last = min(room, self.limit)
        if positions >= last or not self._pads:
            return positions
        if positions == 1 and self.due:
            return 1
        rows, timed = self.rows, self.model.timed.get(self.rows, ())
        if positions == 1 and 2 * rows not in timed and self._try_two():
            return 2
        whole = [each // rows for each in timed if each % rows == 0]
        widths = [positions, *[each for each in whole if positions < each <= last]]
        return widths[int(self.times()[widths].argmin())] if len(widths) > 1 else positions

    def record_time(self, width: int, seconds: float, tree: bool = False) -> None:
        """Record the time of a step whose forward had ``width`` positions, and maybe a tree mask.

        Steps that compiled something must not be recorded.
        """
        if self._steps < 2:  # caches are cold after a prefill
            return
        width = int(self._widths[min(width, self.limit)])
        relative = self.rows * (float(self.times()[width]) if width > 1 else 1.0)
        self.plain_seconds = averaged(self.plain_seconds, seconds / relative)
        self.learn(seconds, self.rows, int(self._positions(width)), self._length, tree)

    def learn(
        self, seconds: float, rows: int, positions: int, length: int = 0, branches: bool = False
    ) -> None:
        """Learn from the time of a step's forward; see ``CostModel.learn``."""
        self.model.learn(self._before, seconds, rows, positions, length, branches)
        if positions == rows:
            self._untimed = self._rejected = 0

    def record_prefill(self, seconds: float, positions: int) -> None:
        """Record a prefill of ``positions`` in all rows. If they are few, reading is free."""
        self.position_seconds = seconds / positions if positions >= MIN_PREFILL_POSITIONS else 0.0

    def record_acceptance(self, width: int, drafted: int, accepted: int) -> None:
        """Record a step's drafted and accepted tokens over all rows, in a forward of ``width``."""
        if drafted or self._losses:
            cost = float(self._costs()[min(width, self.limit)]) if drafted else 1.0
            self._losses = losses_after(self._losses, cost, accepted / self.rows)
        if drafted:
            self._rejected = 0 if accepted else self._rejected + 1

    def _positions(self, widths: Any) -> Any:
        """The positions of all rows together in forwards of these widths."""
        return self.rows + (widths - 1) * (1 if self._packed else self.rows)

    def _try_two(self) -> bool:
        """Whether two positions are to be timed once more, as they may cost less than one."""
        trials = self.model.counts.get((self.rows, 2 * self.rows), 0)
        tried = self.rows, trials
        if tried not in self._tried:
            self._tried[tried] = bool(self.times()[2] < (1.0 if trials else self.MAX_TRIED))
        return self._tried[tried]

    def _costs(self) -> Float32:
        """The minimum cost of n or more positions relative to a plain step, float32 (limit + 1,).

        In a prefill, a position costs what the widest forwards take for a further one.
        Pending tokens widen the forward of any step. A plain step leaves none. A draft that is not
        accepted whole leaves them and its own accepted tokens to the next step.
        """
        times, pending = self.times(), self._pending
        known = self._cached.get("costs")
        if known is None or known[0][0] is not times or known[0][1:] != (self._prefill, pending):
            cost = self._of_prefill(times) if self._prefill else self._of_step(times)
            known = self._cached["costs"] = (times, self._prefill, pending), cost
        return known[1]

    def _of_prefill(self, times: Float32) -> Float32:
        last = len(times) - 1
        slope = (times[last] - times[(last + 1) // 2]) / max(last // 2, 1)
        cost: Float32 = (1.0 + slope * np.arange(-1.0, last)).astype(np.float32)
        return cost

    def _of_step(self, times: Float32) -> Float32:
        cost, last, pending = times, len(times) - 1, self._pending
        if pending is not None:
            left = max(float(cost[min(pending + 3, last)]) - float(cost[1]), 0.0)
            cost = cost[np.minimum(np.arange(last + 1) + pending, last)]
            cost[2:] += self.UNDONE * left
        wider = np.minimum.accumulate(cost[::-1])[::-1]
        relative: Float32 = wider / (wider if self._pads else cost)[1]
        return relative


def required_tokens(cost: Float32, losses: float = 0.0) -> Float32:
    """The tokens that a step must be expected to yield, float32 (limit + 1,).

    ``cost`` has this shape: [n] is the cost of n positions relative to a step without a draft.
    ``losses`` are the lost drafts, see ``losses_after``.
    """
    factor = FACTOR + losses
    required: Float32 = MARGIN + cost + (factor - 1.0) * np.maximum(cost - 1.0, 0.0)
    required[:2] = 1.0
    return required


def losses_after(losses: float, cost: float, accepted: float) -> float:
    """The ``losses`` of ``required_tokens`` after one more step, 0..MAX_LOSSES.

    A draft without an accepted token is 1, one that yields what it costs 0, and one that yields
    more repays. ``cost`` is that of the step, relative to one without a draft, and ``accepted`` the
    accepted tokens of a row.
    """
    price = cost - 1.0
    lost = (price - accepted) / max(price, CHEAP)
    return min(max(losses + lost - REPAID, 0.0), MAX_LOSSES)


def scaled(required: Float32, share: float) -> Float32:
    """``share`` times what further positions require, of the same shape."""
    shared: Float32 = (1.0 + (required - 1.0) * share).astype(np.float32)
    return shared


def averaged(average: float | None, value: float) -> float:
    """A decaying average with one more value."""
    return value if average is None else 0.9 * average + 0.1 * value
