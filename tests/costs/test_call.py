"""Costs while rows leave: each number of rows has its own, and begins with what is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import tiny_llama
from cost_models import KIND

from ngramspec.costs.call import CallCosts
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.draft_length.schedule import CostGamma


def costs(rows, model=None, tokens=200):
    model = model or tiny_llama()

    def make(count):
        return StepCostTracker(model, replace(KIND, rows=count), 9, tokens)

    return CallCosts(make, rows)


def run(costs, seconds, steps=60):
    """Steps of widths 1 to 5 in turn."""
    for step in range(steps):
        costs.plain()
        width = 1 + step % 5
        costs.record_time(width, seconds(width))
        costs.record_acceptance(width - 1, 1)


def test_fewer_rows_begin_with_what_more_have_measured():
    """By hand: 8 rows pay 0.3 for each further position, so 2 rows pay about a quarter of it."""
    batch = costs(8)
    batch.at(100)
    run(batch, lambda width: 1 + 0.3 * (width - 1))
    of_eight = batch.cost().copy()
    assert of_eight[5] == pytest.approx(1.02 + 1.5 * 1.2, rel=0.05)
    batch.keep_rows(2)
    assert batch.now.chains()[5] == pytest.approx(1.3, rel=0.03)
    run(batch, lambda width: 1 + 0.9 * (width - 1))
    assert batch.cost()[5] > 1.5 * 0.8 * 3.6 > of_eight[5]


def test_plain_steps_are_timed_while_all_rows_are_there():
    batch, due = costs(8), []
    for step in range(30):
        if step == 10:
            batch.keep_rows(4)
        due.append(batch.plain())
        batch.record_time(5, 0.02)
        batch.record_acceptance(4, 0)
    assert any(due[:10])
    assert not any(due[10:])


def test_what_was_measured_before_is_not_replaced():
    model = tiny_llama()
    first = costs(2, model)
    run(first, lambda width: 1 + 0.5 * (width - 1))
    batch = costs(4, model)
    run(batch, lambda width: 1.0)
    batch.keep_rows(2)
    assert batch.cost()[5] == pytest.approx(1.02 + 1.5 * 2, rel=0.1)


def test_a_row_bears_its_share_of_a_wider_forward():
    batch = costs(4)
    run(batch, lambda width: 1 + 0.4 * (width - 1))
    row = CostGamma(8, batch.cost, drafting_cost=batch.cost_alone)
    gamma, cost = row.plan(estimates=True)
    assert gamma == 8
    assert cost[1:] == pytest.approx(1 + (batch.cost()[1:] - 1) / 4)
    gamma, cost = row.plan(estimates=False)
    assert cost is None
    assert np.all(batch.cost()[2:] > 1)
