"""Replay in a batch: the rows share the cost of a step's positions.

As in a serving engine there are always as many rows as there are traces left, up to a number, and
each row's next token competes with those of all others for the batch's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.played_row import PlayedRow
from ngramspec.draft import Float32
from ngramspec.draft_length.batch_choice import generous_cost, worthwhile_rows
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.measure.replay import Tally
from ngramspec.measure.traces import Trace, by_group


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a batch is drafted for.

    Attributes:
        free: positions of a step, those of all rows together, that cost as much as one; a step of
            more takes as much longer as it has more.
    """

    rows: int
    gamma_max: int = 64
    free: int = 64

    def curve(self, rows: int) -> Float32:
        """[d] what a step of ``rows`` rows and d drafted tokens costs, in steps without a draft."""
        positions = rows + np.arange(rows * self.gamma_max + 1)
        seconds = np.maximum(1.0, positions / self.free)
        cost: Float32 = (seconds / seconds[0]).astype(np.float32)
        return cost


class BatchPlayer:
    """Replays traces in batches through one drafter and keeps a tally.

    Args:
        drafter: shared by all traces.
        plan: how the batch is drafted for.
    """

    def __init__(self, drafter: Drafter, plan: BatchPlan) -> None:
        self.drafter = drafter if drafter.estimates else CalibratedDrafter(drafter)
        self.plan = plan
        self.tally = Tally()

    def play(self, traces: Iterable[Trace]) -> BatchPlayer:
        """Replay traces, in order; returns itself."""
        waiting = list(traces)[::-1]
        rows: list[PlayedRow] = []
        while rows or waiting:
            while waiting and len(rows) < self.plan.rows:
                rows.append(self._begin(waiting.pop()))
            self._step(rows)
            for row in rows:
                if not row.left:
                    row.session.close()
            rows = [row for row in rows if row.left]
        return self

    def _begin(self, trace: Trace) -> PlayedRow:
        committed = np.concatenate((trace.prompt, trace.output[:1]))
        return PlayedRow(trace.output, self.drafter.start(committed))

    def _step(self, rows: Sequence[PlayedRow]) -> None:
        curve = self.plan.curve(len(rows))
        gamma_max = self.plan.gamma_max
        cost = generous_cost(curve, len(rows), gamma_max)
        begin = perf_counter_ns()
        found = [row.session.propose(min(gamma_max, row.left - 1), cost) for row in rows]
        drafts = worthwhile_rows(found, curve)
        self.tally.nanoseconds.append(perf_counter_ns() - begin)
        for row, draft in zip(rows, drafts, strict=True):
            row.verify(draft, self.tally, self.drafter.source_names)
        self.tally.cost += float(curve[sum(map(len, drafts))])


def compare_rows(
    make: Callable[[], Drafter], plan: BatchPlan, traces: Sequence[Trace]
) -> dict[str, dict[str, Any]]:
    """Each group's traces in a batch, and one after another.

    Returns:
        by group: ``rows`` and ``single``, as ``Tally.to_dict``, and ``share``, the tokens per call
        of the former by the latter's.
    """
    single = BatchPlan(1, plan.gamma_max, plan.free)
    found = {}
    for group, of_group in by_group(traces).items():
        batch, alone = (
            BatchPlayer(make(), each).play(of_group).tally.to_dict() for each in (plan, single)
        )
        share = batch["tokens_per_call"] / alone["tokens_per_call"]
        found[group] = {"rows": batch, "single": alone, "share": share}
    return found
