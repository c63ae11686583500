"""Initial weights of the value engine with a store, fitted to recordings.

    python -m benchmarks start_values --folders SET1 SET2 > ngramspec/_native/starts.py

Each folder holds ``traces.jsonl`` and ``REPO.ngc`` or ``REPO.npy`` for each trace's ``repo``, as
for ``ngramspec replay --corpus``. The plain-Python twin replays every repository with a separate
calibration, as chains on the gpu curve. Each candidate gives one row: the log-odds of
its cells, its situation, and whether it was right. The weights are a logistic regression on them
with a ridge, by Newton's method; a row of a trace's output counts as much as ``OUTPUT`` rows of its
prompt. Two thousand rows take a second or two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import starts
from ngramspec.draft import Int32
from ngramspec.drafters.shared import REHEARSED_TOKENS
from ngramspec.drafters.value import ValueDrafter, ValueSession
from ngramspec.measure.costs import cost_curve
from ngramspec.measure.knowledge import Knowledge
from ngramspec.measure.replay import Plan, Player
from ngramspec.measure.traces import read_traces
from tests.twins.calibration import CONSTANT, Calibration, Candidate
from tests.twins.store_corpus import CorpusIndex as CorpusTwin
from tests.twins.value import ValueEngine

TABLES = {  # its rows, in the order of a situation's numbers
    "BY_KNOWN": 3,
    "BY_LENGTH": 12,
    "BY_AGREEMENT": 3,
    "BY_STANDING": 20,
    "BY_STORE_LENGTH": 12,
}
OUTPUT, RIDGE, NEWTON = 4.0, 20.0, 12
UNSEEN = {"top": 0.25, "pair": 0.2}  # recordings of repositories have no top-k candidates
Float64 = NDArray[np.float64]


class Recorder(Calibration):
    """A calibration that records its training rows at positions where a store has candidates.

    Attributes:
        rows: (log-odds by input as they were for the draft; row of each table, -1 where no further
            weights count; right; weight).
        counts_as: how much the next rows count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[list[float], list[int], bool, float]] = []
        self.counts_as = 1.0
        self._inputs: dict[int, list[float]] = {}

    def mix(self, candidate: Candidate) -> Candidate:
        x = [0.0] * len(starts.INPUTS)
        for name, situation in candidate.situations.items():
            x[starts.INPUTS.index(name)] = float(self.cell(situation).stretch())
        x[-1] = float(CONSTANT)
        self._inputs[id(candidate)] = x
        return super().mix(candidate)

    def learn(self, candidate: Candidate, right: bool) -> None:
        length, agrees, stored = candidate.set
        if stored:
            further = (-1, -1)
            if candidate.standing is not None:
                _, own, says, store_length = candidate.standing
                further = starts.SAYS * own + says, store_length
            agreement = 0 if agrees is None else 1 if agrees else 2
            where = [(stored - 1) % 3, length, agreement, *further]
            self.rows.append((self._inputs[id(candidate)], where, right, self.counts_as))
        super().learn(candidate, right)


class Places(CorpusTwin):
    """The twin's look-ups, from an index on disk: the twin's own sorts the text each time."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.places: Any = self

    def __getitem__(self, i: int) -> int:
        return int(self.index.place(i))

    def interval(self, context: Sequence[int]) -> tuple[int, int]:
        first, end = self.index.interval(np.array(context, np.int32))
        return first, end

    def longest(self, context: Sequence[int]) -> tuple[int, int, int]:
        length, first, end = self.index.longest(np.array(context[-64:], np.int32))
        return length, first, end

    def token(self, at: int) -> int | None:
        found = self.index.tokens_at(at, 1)
        return int(found[0]) if len(found) else None


class RecordingDrafter(ValueDrafter):
    """The twin, recording."""

    recorder: Recorder

    def with_stores(self, stores: Sequence[Any]) -> RecordingDrafter:
        other = RecordingDrafter(stores=stores)
        other.recorder = Recorder()
        return other

    def start(self, tokens: Int32) -> ValueSession:
        self.recorder.counts_as = 1.0
        store = Places(self.stores[0].index)
        engine = ValueEngine(self.recorder, store=store)
        session = ValueSession(engine, tokens, rehearsed=REHEARSED_TOKENS)
        self.recorder.counts_as = OUTPUT
        return session


def record(folder: Path) -> Iterable[Recorder]:
    """The training rows of the repositories of a folder, each replayed separately."""
    knowledge, traces = Knowledge(folder), read_traces(folder / "traces.jsonl")
    for repo in dict.fromkeys(trace.repo for trace in traces):
        drafter = RecordingDrafter().with_stores([knowledge.corpus(repo)])
        plan = Plan(cost_curve("gpu", 64), "auto", 64)
        Player(drafter, plan).play(trace for trace in traces if trace.repo == repo)
        yield drafter.recorder


def fit(
    x: NDArray[np.float32], where: NDArray[np.int64], right: NDArray[np.bool_], weight: Float64
) -> Float64:
    """The tables' rows, one below the other, (50, inputs).

    Args:
        x: (n, inputs), log-odds.
        where: (n, 5), row of each table, -1: none.
        right: (n,).
        weight: (n,).
    """
    offsets = np.cumsum([0, *TABLES.values()])
    rows, inputs = int(offsets[-1]), x.shape[1]
    situations, inverse = np.unique(where, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse.ravel()))[:-1])
    theta = np.zeros((rows, inputs))
    for _ in range(NEWTON):
        slope = -RIDGE * theta
        curve = RIDGE * np.eye(rows * inputs).reshape(rows, inputs, rows, inputs)
        for situation, part in zip(situations, parts, strict=True):
            mine = [o + i for o, i in zip(offsets, situation, strict=False) if i >= 0]
            there = x[part].astype(np.float64)
            p = 1 / (1 + np.exp(-np.clip(there @ theta[mine].sum(0), -30, 30)))
            up = there.T @ (weight[part] * (right[part] - p))
            bend = (there * (weight[part] * p * (1 - p))[:, None]).T @ there
            slope[mine] += up
            for i in mine:
                curve[i][:, mine] += bend[:, None]
        step = np.linalg.solve(curve.reshape(slope.size, -1), slope.ravel())
        theta += step.reshape(theta.shape)
    return theta


def module(theta: Float64) -> str:
    """The text of ``ngramspec/_native/starts.py`` with these weights, in steps of 0.05."""
    source = Path(starts.__file__).read_text(encoding="utf-8")
    lines, at = [source[: source.index("BY_KNOWN = ")].rstrip("\n") + "\n\n"], 0
    for name, count in TABLES.items():
        table = theta[at : at + count].copy()
        at += count
        if name == "BY_KNOWN":
            for unseen, value in UNSEEN.items():
                table[:, starts.INPUTS.index(unseen)] = value
        lines += [f"{name} = table("]
        for row in np.round(table / starts.STEP).astype(int).tolist():
            lines.append(f"    ({', '.join(map(str, row))}),")
        lines += [")"]
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--folders", type=Path, nargs="+", required=True)


def run(options: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    rows = [row for each in options.folders for part in record(each) for row in part.rows]
    x, where, right, weight = (np.array(column) for column in zip(*rows, strict=True))
    print(module(fit(x.astype(np.float32), where, right, weight)))
    return 0
