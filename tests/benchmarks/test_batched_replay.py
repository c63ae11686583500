"""Replay in batches: the costs of rows, and one row against the replay of single traces."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay import BatchPlan, BatchPlayer, GeneratePlan, GeneratePlayer, flat, measured
from ngramspec.drafters import build_drafter
from ngramspec.measure.replay import Plan, Player
from ngramspec.measure.traces import Trace


def trace(seed, count=60, group="g"):
    rng = np.random.default_rng(seed)
    text = np.tile(rng.integers(3, 50, 12), 9).astype(np.int32)
    text[rng.random(len(text)) < 0.1] = 60
    return Trace(group, str(seed), text[:-count], text[-count:])


def test_the_curve_by_hand():
    curve = BatchPlan(2, gamma_max=3, free=4).curve(2)
    assert curve.tolist() == [1, 1, 1, 1.25, 1.5, 1.75, 2]
    assert BatchPlan(8, gamma_max=1, free=4).curve(8)[[0, 8]].tolist() == [1, 2]


def test_costs_by_hand():
    assert flat(4).tolist() == [1, 1, 1, 1, 1, 1.25]
    plan = GeneratePlan(3, flat(4), gamma_max=3)
    assert plan.cost(3).tolist() == [1, 1, 1.5, 2.25, 3]
    assert plan.cost(1).tolist() == [1, 1, 1, 1, 1]
    known = measured(np.array([1, 1, 1, 1.5, 1.5, 1.5], np.float32))
    assert known.tolist() == [1, 1, 1, 1.5]
    assert GeneratePlan(2, known, gamma_max=1).cost(2).tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("player", "plan", "tree"),
    [
        (BatchPlayer, BatchPlan(1, gamma_max=8, free=9), False),
        (GeneratePlayer, GeneratePlan(1, flat(9), gamma_max=8), False),
        (GeneratePlayer, GeneratePlan(1, flat(9), gamma_max=8, tree=True), True),
    ],
)
def test_one_row_is_the_replay_of_single_traces(player, plan, tree):
    traces = [trace(seed) for seed in range(4)]
    single = Plan(np.ones(10, np.float32), gamma_max=8, tree=tree)
    alone = Player(build_drafter("auto"), single).play(traces).groups["g"]
    batch = player(build_drafter("auto"), plan).play(traces).tally
    for name in ("emitted", "target_calls", "drafted", "accepted"):
        assert getattr(batch, name) == getattr(alone, name), name
