"""Replay in batches: rows share a step's positions, and each is played as if alone otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay import (
    BatchPlan,
    BatchPlayer,
    GeneratePlan,
    GeneratePlayer,
    compare_rows,
    compare_trees,
    flat,
    measured,
)
from ngramspec.draft import Draft
from ngramspec.drafters import build_drafter
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.measure.replay import Plan, Player
from ngramspec.measure.traces import Trace


def trace(seed, count=60, group="g"):
    rng = np.random.default_rng(seed)
    text = np.tile(rng.integers(3, 50, 12), 9).astype(np.int32)
    text[rng.random(len(text)) < 0.1] = 60
    return Trace(group, str(seed), text[:-count], text[-count:])


class Knowing(Drafter):
    """Knows every trace; is as sure as it is told for each."""

    estimates = True

    def __init__(self, traces, confidence):
        self.texts = {each.prompt.tobytes(): each for each in traces}
        self.confidence = dict(zip([each.id for each in traces], confidence, strict=True))
        self.lengths = {each.id: [] for each in traces}

    def start(self, tokens):
        owner, text = self, self.texts[tokens[:-1].tobytes()]

        class Session(DraftSession):
            at = 1

            def propose(self, gamma, cost=None, *, tree=False):
                tokens = text.output[self.at : self.at + gamma]
                sure = np.full(len(tokens), owner.confidence[text.id], np.float32)
                return Draft(tokens, None, sure)

            def extend(self, tokens):
                assert np.array_equal(text.output[self.at : self.at + len(tokens)], tokens)
                owner.lengths[text.id].append(len(tokens) - 1)
                self.at += len(tokens)

        return Session()


def test_the_curve_by_hand():
    curve = BatchPlan(2, gamma_max=3, free=4).curve(2)
    assert curve.tolist() == [1, 1, 1, 1.25, 1.5, 1.75, 2]
    assert BatchPlan(8, gamma_max=1, free=4).curve(8)[[0, 8]].tolist() == [1, 2]


def test_the_surest_rows_get_the_positions():
    """12 positions for 3 rows: 9 drafted tokens, all of the one row that is sure."""
    traces = [trace(seed) for seed in range(3)]
    drafter = Knowing(traces, [1.0, 0.01, 0.01])
    BatchPlayer(drafter, BatchPlan(3, gamma_max=9, free=12)).play(traces)
    assert drafter.lengths["0"][:5] == [9] * 5
    assert drafter.lengths["1"][:5] == [0] * 5
    assert sum(map(len, drafter.lengths.values())) > 12


def test_one_row_is_the_replay_of_single_traces():
    traces = [trace(seed) for seed in range(4)]
    cost = np.ones(10, np.float32)
    alone = Player(build_drafter("auto"), Plan(cost, gamma_max=8)).play(traces).groups["g"]
    plan = BatchPlan(1, gamma_max=8, free=9)
    batch = BatchPlayer(build_drafter("auto"), plan).play(traces).tally
    for name in ("emitted", "target_calls", "drafted", "accepted"):
        assert getattr(batch, name) == getattr(alone, name), name


def test_all_traces_are_played_and_rows_come_as_others_leave():
    traces = [trace(seed, count=20 + 7 * seed) for seed in range(7)]
    found = compare_rows(lambda: build_drafter("auto"), BatchPlan(3, free=16), traces)["g"]
    for way in ("rows", "single"):
        assert found[way]["emitted"] == sum(len(each.output) - 1 for each in traces)
    assert found["share"] == found["rows"]["tokens_per_call"] / found["single"]["tokens_per_call"]
    assert 0.5 < found["share"] <= 1


def test_costs_by_hand():
    assert flat(4).tolist() == [1, 1, 1, 1, 1, 1.25]
    plan = GeneratePlan(3, flat(4), gamma_max=3)
    assert plan.cost(3).tolist() == [1, 1, 1.5, 2.25, 3]
    assert plan.cost(1).tolist() == [1, 1, 1, 1, 1]
    known = measured(np.array([1, 1, 1, 1.5, 1.5, 1.5], np.float32))
    assert known.tolist() == [1, 1, 1, 1.5]
    assert GeneratePlan(2, known, gamma_max=1).cost(2).tolist() == [1, 1, 2]


def test_the_sure_row_widens_the_forward_of_all():
    """Two rows of 12 tokens, one of which is sure: three forwards, in which positions are free."""
    traces = [trace(seed, count=13) for seed in range(2)]
    drafter = Knowing(traces, [1.0, 0.001])
    player = GeneratePlayer(drafter, GeneratePlan(2, flat(100), gamma_max=4)).play(traces)
    assert player.plain == 12
    assert drafter.lengths["0"][0] == drafter.lengths["1"][0] == 4
    assert player.tally.emitted == 24
    assert player.tally.cost == 3  # all that is drafted is right


def test_one_row_of_generate_is_the_replay_of_single_traces():
    traces = [trace(seed) for seed in range(4)]
    for tree in (False, True):
        plan = Plan(np.ones(10, np.float32), gamma_max=8, tree=tree)
        alone = Player(build_drafter("auto"), plan).play(traces).groups["g"]
        own = GeneratePlan(1, flat(9), gamma_max=8, tree=tree)
        batch = GeneratePlayer(build_drafter("auto"), own).play(traces).tally
        for name in ("emitted", "target_calls", "drafted", "accepted"):
            assert getattr(batch, name) == getattr(alone, name), name


def test_all_rows_are_played_to_their_ends():
    traces = [trace(seed, count=20 + 7 * seed, group=f"group {seed % 2}") for seed in range(7)]
    found = compare_trees(lambda: build_drafter("auto"), GeneratePlan(3, flat(64)), traces)
    assert set(found) == {"group 0", "group 1", "mean"}
    for measure in ("tokens_per_call", "speedup"):
        values = [found[f"group {each}"]["trees"][measure] for each in range(2)]
        assert found["mean"]["trees"][measure] == pytest.approx(np.sqrt(values[0] * values[1]))
        assert min(values) > 1
