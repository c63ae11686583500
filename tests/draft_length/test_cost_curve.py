"""What forwards cost: assumed, then measured."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny_llama
from cost_models import KIND, fed, tracker

from ngramspec.draft_length.cost_curve import CostCurve, assumed_cost
from ngramspec.draft_length.step_cost import StepCostTracker

FLAT = np.ones(66, np.float32)


def test_a_curve_is_as_assumed_until_it_is_measured():
    assumed = assumed_cost("cpu", 64)
    assert CostCurve(assumed).cost() is assumed


def test_measured_widths_count_and_those_between_follow():
    cost = fed(CostCurve(FLAT), {1: 0.02, 5: 0.03, 9: 0.06}).cost()
    assert cost[1] == 1
    assert 1.4 < cost[5] < 1.5  # nine times count 0.9 against what was assumed
    assert 2.6 < cost[9] < 3.0
    assert cost[1] < cost[3] < cost[5] < cost[7] < cost[9]
    assert cost[9] == cost[40] == cost[65]


def test_an_outlier_does_not_move_it_and_a_lasting_change_does():
    curve = fed(CostCurve(FLAT), {1: 0.02, 5: 0.02})
    curve.add(5, 2.0)
    fed(curve, {1: 0.02}, 8)
    assert curve.cost()[5] < 1.05
    fed(curve, {5: 0.04}, 9)
    fed(curve, {1: 0.02}, 8)
    assert curve.cost()[5] > 1.7


def test_what_is_long_past_counts_less():
    curve = fed(CostCurve(FLAT), {1: 0.02, 5: 0.06})
    before = curve.cost()[5]
    fed(curve, {1: 0.02}, 2000)
    assert 1.0 < curve.cost()[5] < 1.4 < before


def test_without_a_plain_step_the_others_say_what_one_would_take():
    cost = fed(CostCurve(assumed_cost("cpu", 64)), {5: 0.02, 9: 0.02}).cost()
    assert cost[1] == 1
    assert cost[5] == pytest.approx(1.15, abs=0.1)


def test_contexts_of_another_length_begin_with_what_is_known():
    costs = tracker()
    fed(costs.curve, {1: 0.02, 5: 0.06})
    short = costs.curve
    costs.at(4000)
    assert costs.curve is not short
    assert costs.curve.cost()[5] == short.cost()[5] > 2
    costs.at(100)
    assert costs.curve is short


def test_a_longer_limit_goes_on_from_what_is_known():
    model = tiny_llama()
    short = StepCostTracker(model, KIND, 9, 200)
    fed(short.curve, {1: 0.02, 9: 0.1})
    assert len(short.cost()) == 10
    long = tracker(model)
    assert long.curve is short.curve
    assert len(long.cost()) == 66
    assert 4 < long.curve.cost()[9] < long.curve.cost()[40]
    assert len(short.cost()) == 10
    assert short.width(9, 65) == 9


def test_trees_have_costs_of_their_own():
    trees = StepCostTracker(tiny_llama(), replace(KIND, tree=True), 65, 200)
    trees.plain(), trees.plain()
    for width, tree, seconds in [(1, False, 0.02), (9, True, 0.06), (9, False, 0.03)] * 9:
        trees.took(width, seconds, tree)
    assert trees.curve.cost()[9] == pytest.approx(1.5, abs=0.15)
    assert trees.trees.cost()[9] == pytest.approx(3.0, abs=0.3)
    assert trees.cost()[9] > 2.5
    chains = tracker()
    assert chains.trees is chains.curve


def test_until_trees_ran_they_cost_what_chains_do():
    trees = StepCostTracker(tiny_llama(), replace(KIND, tree=True), 65, 200)
    trees.plain(), trees.plain()
    for width, seconds in [(1, 0.02), (9, 0.06), (17, 0.05)] * 9:
        trees.took(width, seconds)
    assert trees.trees.cost()[9] == pytest.approx(3.0, abs=0.3)
    trees.took(9, 0.5, True)  # one says little
    assert trees.trees.expected(9) == pytest.approx(3.0, abs=0.3)
    for _ in range(9):
        trees.took(9, 0.03, True)
        trees.took(9, 0.06)
    assert trees.trees.cost()[9] == pytest.approx(1.5, abs=0.15)
    assert trees.trees.cost()[17] == pytest.approx(2.5, abs=0.25)
    assert trees.curve.cost()[9] == pytest.approx(3.0, abs=0.3)


def test_curves_are_kept_for_a_model_and_go_with_it():
    model = tiny_llama()
    first = tracker(model)
    assert tracker(model).curve is first.curve
    assert tracker().curve is not first.curve
    gone = weakref.ref(first.curve)
    del model, first
    gc.collect()
    assert gone() is None
