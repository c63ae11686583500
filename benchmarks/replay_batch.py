"""Recorded outputs played in batches of ``generate``: rows begin together and share one width.

A step is one forward, in which every row is as wide as the longest draft: what a row does not need
of that width is padding. Rows that have ended leave as they do in ``generate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.played_row import PlayedRow
from ngramspec.costs.curve import scaled
from ngramspec.costs.tracker import DraftMargin
from ngramspec.decoding.batch import MAX_UNFINISHED_SHARE
from ngramspec.draft import Float32
from ngramspec.draft_length.batch_choice import common_length, urgencies
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.measure.replay import Tally
from ngramspec.measure.traces import Trace, by_group

MEASURES = ("tokens_per_call", "speedup")


@dataclass(frozen=True, slots=True)
class GeneratePlan:
    """How a batch of ``generate`` is played.

    Attributes:
        positions: float32 (n,), [k] what a forward of k positions, those of all rows together,
            costs, in any unit; linear after the last; index 0 unused.
        new: most tokens of an output; None: all.
    """

    rows: int
    positions: Float32
    gamma_max: int = 64
    tree: bool = False
    new: int | None = None

    def cost(self, rows: int) -> Float32:
        """[k] what a forward of k positions in each row costs, float32 (gamma_max + 2,)."""
        at, last = rows * np.arange(self.gamma_max + 2), len(self.positions) - 1
        slope = float(self.positions[last] - self.positions[last - 1])
        cost = self.positions[np.minimum(at, last)] + slope * np.maximum(at - last, 0)
        return cost.astype(np.float32)


def flat(free: int) -> Float32:
    """Costs of forwards: those of up to ``free`` positions cost as much as one of one position, and
    wider ones in proportion."""
    return np.maximum(1.0, np.arange(free + 2) / free).astype(np.float32)


def measured(curve: Float32) -> Float32:
    """A curve up to the last position with a known cost; after it, the curve is constant."""
    rising = np.flatnonzero(np.diff(curve[1:]) > 0)
    return curve[: rising[-1] + 3] if len(rising) else curve


class GeneratePlayer:
    """Replays traces in batches of ``generate`` through one drafter.

    Attributes:
        plain: what plain decoding of the same batches costs; its rows stay to the end.
    """

    def __init__(self, drafter: Drafter, plan: GeneratePlan) -> None:
        self.drafter = drafter if drafter.estimates else CalibratedDrafter(drafter)
        self.plan = plan
        self.tally = Tally()
        self.plain = 0.0

    def play(self, traces: Sequence[Trace]) -> GeneratePlayer:
        """Replay traces, in order; returns itself."""
        for first in range(0, len(traces), self.plan.rows):
            self._batch(traces[first : first + self.plan.rows])
        return self

    def _batch(self, traces: Iterable[Trace]) -> None:
        rows = [self._begin(trace) for trace in traces]
        everyone, steps, present, margin = rows, 0, len(rows), DraftMargin()
        self.plain += max(row.left for row in rows) * float(self.plan.cost(present)[1])
        while rows := [row for row in rows if row.left]:
            if len(rows) <= MAX_UNFINISHED_SHARE * present:
                present = len(rows)
            steps += 1
            self._step(rows, present, steps, margin)
        for row in everyone:
            row.session.close()

    def _begin(self, trace: Trace) -> PlayedRow:
        output = trace.output[: self.plan.new]
        committed = np.concatenate((trace.prompt, output[:1]))
        return PlayedRow(output, self.drafter.start(committed))

    def _step(
        self, rows: Sequence[PlayedRow], present: int, steps: int, margin: DraftMargin
    ) -> None:
        absolute, tree = self.plan.cost(present), self.plan.tree
        cost = margin.required(absolute / absolute[1])
        own = scaled(cost, 1.0 / present)
        drafts = [
            row.session.propose(min(self.plan.gamma_max, row.left - 1), own.copy(), tree=tree)
            for row in rows
        ]
        weights = urgencies([row.left for row in rows], [row.at for row in rows], steps)
        length, _ = common_length(drafts, weights, cost)
        drafts = [draft.first(length) for draft in drafts]
        self.tally.cost += float(absolute[1 + max(map(len, drafts))])
        before = self.tally.drafted, self.tally.accepted
        for row, draft in zip(rows, drafts, strict=True):
            row.verify(draft, self.tally, self.drafter.source_names)
        drafted, accepted = self.tally.drafted - before[0], self.tally.accepted - before[1]
        margin.record_acceptance(drafted, accepted)


def compare_trees(
    make: Callable[[], Drafter], plan: GeneratePlan, traces: Sequence[Trace]
) -> dict[str, dict[str, dict[str, float]]]:
    """Each group's traces with chains and with trees, and all of them together.

    Returns:
        by group, ``chains`` and ``trees``: the ``MEASURES``, a row's tokens per call, and what
        plain decoding costs by what the forwards cost. In the group "mean" their geometric means.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for group, of_group in by_group(traces).items():
        found[group] = {}
        for name, tree in (("chains", False), ("trees", True)):
            player = GeneratePlayer(make(), replace(plan, tree=tree)).play(of_group)
            values = (player.tally.tokens_per_call, player.plain / player.tally.cost)
            found[group][name] = dict(zip(MEASURES, values, strict=True))
    every = list(found.values())
    found["mean"] = {
        way: {
            each: float(np.exp(np.mean([np.log(ways[way][each]) for ways in every])))
            for each in MEASURES
        }
        for way in ("chains", "trees")
    }
    return found
