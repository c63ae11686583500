"""``ngramspec replay`` with the drafters of other projects, and in batches.

Without ``--rows`` and ``--together`` it is the replay of ``ngramspec replay``, one request after
another. ``--peers`` adds Arctic's suffix decoding and transformers' prompt lookup.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.harness import show, write
from benchmarks.peers import add_peers, installed, print_skipped
from ngramspec._native import generous_cost
from ngramspec.cli import replay
from ngramspec.cli.options import CommandOptions, usable
from ngramspec.costs.policies import common_length
from ngramspec.costs.row_lengths import urgencies, worthwhile_rows
from ngramspec.costs.steps import rejections_after, required_tokens, scaled
from ngramspec.decoding.ragged import MAX_UNFINISHED_SHARE
from ngramspec.draft import Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.priority import CalibratedDrafter
from ngramspec.errors import check_int
from ngramspec.measure.replay import Tally, cost_curve
from ngramspec.measure.traces import Trace, by_group


@dataclass(slots=True)
class PlayedRow:
    """A recorded output that is played as a row of a batch."""

    output: Int32
    session: DraftSession
    at: int = 1
    _recorded: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._recorded = self.output.tolist()

    @property
    def left(self) -> int:
        """Tokens that are not committed yet."""
        return len(self._recorded) - self.at

    def verify(self, draft: Draft, tally: Tally, sources: Sequence[str]) -> None:
        """Commit what the recording accepts of a draft, and its next token; count both.

        The cost is not counted. ``sources`` are those of the drafter.
        """
        path = draft.path_along(self._recorded[self.at : self.at + len(draft)])
        new = self.output[self.at : self.at + len(path) + 1]
        verdict = draft.verdict(path, new.tolist())
        if len(draft):
            self.session.observe(draft, path, verdict.verified)
        self.session.extend(new)
        tally.count_step(draft, verdict, sources)
        self.at += len(new)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a batch is drafted for."""

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
    """Replays traces in batches through one drafter and keeps a tally."""

    def __init__(self, drafter: Drafter, plan: Any) -> None:
        self.drafter = drafter if drafter.estimates else CalibratedDrafter(drafter)
        self.plan = plan
        self.tally = Tally()
        self.plain = 0.0  # cost without drafts, if it is counted

    def _begin(self, trace: Trace, new: int | None = None) -> PlayedRow:
        committed = np.concatenate((trace.prompt, trace.output[:1]))
        return PlayedRow(trace.output[:new], self.drafter.start(committed))

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
    """Each group's traces in a batch, and one after another."""
    single = BatchPlan(1, plan.gamma_max, plan.free)
    found = {}
    for group, of_group in by_group(traces).items():
        batch, alone = (
            BatchPlayer(make(), each).play(of_group).tally.to_dict() for each in (plan, single)
        )
        share = batch["tokens_per_call"] / alone["tokens_per_call"]
        found[group] = {"rows": batch, "single": alone, "share": share}
    return found


MEASURES = ("tokens_per_call", "speedup")


@dataclass(frozen=True, slots=True)
class GeneratePlan:
    """How a batch of ``generate`` is played."""

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


class GeneratePlayer(BatchPlayer):
    """Replays traces in batches of ``generate`` through one drafter."""

    def play(self, traces: Iterable[Trace]) -> GeneratePlayer:
        """Replay traces, in order; returns itself."""
        waiting = list(traces)
        for first in range(0, len(waiting), self.plan.rows):
            self._batch(waiting[first : first + self.plan.rows])
        return self

    def _batch(self, traces: Iterable[Trace]) -> None:
        rows = [self._begin(trace, self.plan.new) for trace in traces]
        everyone, steps, present, rejections = rows, 0, len(rows), 0
        self.plain += max(row.left for row in rows) * float(self.plan.cost(present)[1])
        while rows := [row for row in rows if row.left]:
            if len(rows) <= MAX_UNFINISHED_SHARE * present:
                present = len(rows)
            steps += 1
            drafted, accepted = self._step_together(rows, present, steps, rejections)
            rejections = rejections_after(rejections, accepted) if drafted else rejections
        for row in everyone:
            row.session.close()

    def _step_together(
        self, rows: Sequence[PlayedRow], present: int, steps: int, rejections: int
    ) -> tuple[int, int]:
        """One step of all rows; returned are the drafted and the accepted tokens."""
        absolute, tree = self.plan.cost(present), self.plan.tree
        cost = required_tokens(absolute / absolute[1], rejections)
        own = scaled(cost, 1.0 / present)
        drafts = [
            row.session.propose(min(self.plan.gamma_max, row.left - 1), own.copy(), tree=tree)
            for row in rows
        ]
        weights = urgencies([row.left for row in rows], [row.at for row in rows], steps)
        length, _ = common_length(drafts, weights, cost)
        drafts = [draft.first(length).as_chain() for draft in drafts]
        self.tally.cost += float(absolute[1 + max(map(len, drafts))])
        before = self.tally.drafted, self.tally.accepted
        for row, draft in zip(rows, drafts, strict=True):
            row.verify(draft, self.tally, self.drafter.source_names)
        return self.tally.drafted - before[0], self.tally.accepted - before[1]


def compare_trees(
    make: Callable[[], Drafter], plan: GeneratePlan, traces: Sequence[Trace]
) -> dict[str, dict[str, dict[str, float]]]:
    """Each group's traces with chains and with trees, and all of them together."""
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


def add_arguments(options: CommandOptions) -> None:
    replay.add_arguments(options)
    add_peers(options)
    help = "play each group in a batch of N rows, which share a step's positions, and alone"
    options.text("--rows", "N", help, type=int)
    help = (
        "with --rows, or --together without --curve: positions of a step that cost as much as one"
    )
    options.count("--free", 64, help)
    help = "play each group in batches of N rows as generate does, with chains, and with trees"
    options.text("--together", "N", help, nargs="+", type=int)
    options.text("--new", "N", "with --together: most tokens of an output", type=int)


def run(arguments: argparse.Namespace) -> int:
    if arguments.together is not None:
        return run_together(arguments, replay.read(arguments))
    if arguments.rows is not None:
        return run_rows(arguments, replay.read(arguments))
    peers, skipped = installed() if arguments.peers else ({}, {})
    code = replay.run(arguments, peers, skipped)
    print_skipped(skipped)
    return code


def run_rows(arguments: argparse.Namespace, given: replay.ReplayInput) -> int:
    """Replay every drafter in batches; print and write the results."""
    with usable():
        rows = check_int("--rows", arguments.rows, 1)
        plan = BatchPlan(rows, given.gamma_max, check_int("--free", arguments.free, rows))
    results = {name: compare_rows(make, plan, given.traces) for name, make in given.makers.items()}
    for name, groups in results.items():
        for group, found in groups.items():
            single, batch = (found[way]["tokens_per_call"] for way in ("single", "rows"))
            show(drafter=name, group=group, single=single, rows=batch, share=found["share"])
    settings = {"traces": len(given.traces), "gamma_max": given.gamma_max, "rows": rows}
    settings["free"] = plan.free
    write(arguments, {"settings": settings, "results": results})
    return 0


def run_together(arguments: argparse.Namespace, given: replay.ReplayInput) -> int:
    """Replay every drafter in batches of ``generate``; print and write the results."""
    with usable():
        sizes = [check_int("--together", each, 1) for each in arguments.together]
        new = None if arguments.new is None else check_int("--new", arguments.new, 2)
        free = check_int("--free", arguments.free, 1)
        longest = max(sizes) * (given.gamma_max + 1)
        named = {each: cost_curve(each, longest) for each in arguments.curve or ()}
        curves = {Path(each).stem: measured(curve) for each, curve in named.items()}
        curves = curves or {f"flat to {free}": flat(free)}
    results = []
    for (name, make), (curve, cost), rows in product(given.makers.items(), curves.items(), sizes):
        groups = compare_trees(
            make, GeneratePlan(rows, cost, given.gamma_max, new=new), given.traces
        )
        results.append({"drafter": name, "curve": curve, "rows": rows, "groups": groups})
        for group, ways in groups.items():
            found = {f"{way} {each}": ways[way][each] for way in ways for each in MEASURES}
            show(drafter=name, rows=rows, curve=curve, group=group, **found)
    settings = {"traces": len(given.traces), "gamma_max": given.gamma_max, "new": new, "free": free}
    write(arguments, {"settings": settings, "results": results})
    return 0
