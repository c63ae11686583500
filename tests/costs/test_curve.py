"""What forwards cost: assumed, then measured."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from conftest import tiny_llama
from cost_models import KIND, fed, tracker

from ngramspec.costs.curve import ForwardKind, assumed_cost
from ngramspec.costs.tracker import StepCostTracker

TREES = replace(KIND, tree=True)
FLAT = ForwardKind("gpu", "bfloat16")


def test_a_curve_is_as_assumed_until_it_is_measured():
    costs = tracker()
    assert costs.chains()[1:] == pytest.approx(assumed_cost("amx", 64, 1, "float32")[1:])
    assert tracker(kind=TREES).surcharge() == 1.0


def test_on_a_cpu_wide_forwards_are_assumed_to_cost_more_in_long_contexts():
    short, long = (KIND.assumed(length, 65) for length in (100, 4000))
    assert long[1] == short[1] == 1
    assert long[2] > short[2]
    assert long[33] / short[33] > long[2] / short[2]
    assert FLAT.assumed(4000, 65).tolist() == FLAT.assumed(100, 65).tolist()


def test_measured_widths_count_and_those_between_follow():
    cost = fed(tracker(kind=FLAT), {1: 0.02, 5: 0.03, 9: 0.06}).chains()
    assert cost[1] == 1
    assert cost[5] == pytest.approx(1.5, abs=0.1)
    assert cost[9] == pytest.approx(3.0, abs=0.3)
    assert cost[1] < cost[3] < cost[5] < cost[7] < cost[9]
    assert cost[9] < cost[40]  # what becomes dear at nine positions is no cheaper at forty


def test_stalls_do_not_move_it_and_a_lasting_change_does():
    costs = fed(tracker(kind=FLAT), {1: 0.02, 5: 0.02})
    for _ in range(20):
        fed(costs, {5: 0.2, 1: 0.02}, 1)
        fed(costs, {5: 0.02, 1: 0.02}, 4)
    assert costs.chains()[5] < 1.05
    fed(costs, {5: 0.03, 1: 0.02}, 40)
    assert costs.chains()[5] == pytest.approx(1.5, abs=0.1)


def test_what_is_long_past_counts_less():
    costs = fed(tracker(kind=FLAT), {1: 0.02, 5: 0.06})
    before = costs.chains()[5]
    fed(costs, {1: 0.02}, 2000)
    assert 1.0 < costs.chains()[5] < 1.4 < before


def test_steps_of_one_width_say_nothing():
    costs = fed(tracker(kind=FLAT), {1: 0.02, 5: 0.03})
    before = costs.chains()[5]
    for at in range(100):
        costs.record_time(5, 0.03 * 1.05**at)
    assert costs.chains()[5] == pytest.approx(before, rel=0.08)


def test_without_a_plain_step_widths_are_compared_with_each_other():
    cost = fed(tracker(kind=FLAT), {5: 0.02, 9: 0.03}).chains()
    assert cost[1] == 1
    assert cost[9] / cost[5] == pytest.approx(1.5, abs=0.15)


def test_what_is_learned_counts_in_contexts_of_any_length():
    costs = fed(tracker(kind=FLAT), {1: 0.02, 5: 0.06})
    assert costs.chains()[5] == pytest.approx(3, abs=0.3)
    costs.at(5000)
    assert costs.chains()[5] == pytest.approx(3, abs=0.3)


def test_costs_of_long_contexts_are_told_from_those_of_short_ones():
    costs = tracker(kind=FLAT)
    for _ in range(20):
        for length, seconds in ((100, 0.02), (6000, 0.05)):
            costs.at(length)
            fed(costs, {1: 0.02, 11: seconds}, 3)
    dear = costs.chains()[11]
    costs.at(100)
    assert costs.chains()[11] == pytest.approx(1, abs=0.1)
    assert dear == pytest.approx(2.5, abs=0.25)
    costs.at(2000)
    assert 1.1 < costs.chains()[11] < 2.3


def test_trackers_of_other_limits_share_what_is_measured():
    model = tiny_llama()
    short = StepCostTracker(model, KIND, 9, 200)
    fed(short, {1: 0.02, 9: 0.1})
    assert len(short.cost()) == 10
    long = tracker(model)
    assert long.curve is short.curve
    assert len(long.cost()) == 66
    assert 4 < long.chains()[9] < long.chains()[40]
    assert len(short.cost()) == 10
    assert short.width(9, 65) == 9


def test_branches_have_a_surcharge_which_a_few_trees_teach():
    trees = tracker(kind=TREES)
    fed(trees, {1: 0.02, 9: 0.03}, 4)
    for width in (5, 7, 12, 9):
        fed(trees, {1: 0.02, width: 0.03 * 1.3}, 1, tree=True)
        fed(trees, {width: 0.03}, 1)
    assert trees.surcharge() == pytest.approx(1.3, abs=0.08)
    assert trees.chains()[9] == pytest.approx(1.5, abs=0.15)
    assert tracker(trees_model := tiny_llama()).surcharge() == 1.0
    assert tracker(trees_model, kind=TREES).curve is tracker(trees_model).curve


def test_branches_that_cost_nothing_have_none():
    trees = tracker(kind=TREES)
    for _ in range(9):
        fed(trees, {1: 0.02, 9: 0.03}, 1)
        fed(trees, {9: 0.029}, 1, tree=True)
    assert trees.surcharge() == 1.0


def test_curves_are_kept_for_a_model_and_go_with_it():
    model = tiny_llama()
    first = tracker(model)
    assert tracker(model).curve is first.curve
    assert tracker().curve is not first.curve
    gone = weakref.ref(first.curve)
    del model, first
    gc.collect()
    assert gone() is None
