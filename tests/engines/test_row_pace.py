"""What a batch's steps give, and whether requests follow those that ended."""

from __future__ import annotations

import doctest

import pytest

from ngramspec.engines import row_pace
from ngramspec.engines.row_pace import MAX_REFILL_STEPS, Pace


def run(pace, *counts):
    """Steps of (rows, kept), one token each."""
    for rows, kept in counts:
        pace.step(rows, kept, kept)
        pace.drafted(1.0)


def test_a_rate_is_tokens_per_cost_and_never_below_one():
    pace = Pace()
    assert pace.rate == 1.0
    for _ in range(500):
        pace.step(rows=3, kept=2, tokens=8)  # the third has just come
        pace.drafted(cost=1.6)
    assert pace.rate == pytest.approx(4 / 1.6, rel=0.01)
    for _ in range(500):
        pace.step(rows=2, kept=2, tokens=2)
        pace.drafted(cost=1.6)
    assert pace.rate == 1.0


def test_requests_that_follow_others_refill_the_batch():
    pace = Pace()
    run(pace, (4, 0), *[(4, 4), (4, 3)] * 60)
    assert pace.refilled > 0.99


def test_one_that_comes_some_steps_later_follows_too():
    pace = Pace()
    run(pace, (4, 0), *[(3, 3), *[(3, 3)] * (MAX_REFILL_STEPS - 2), (4, 3)] * 60)
    assert pace.refilled > 0.99
    run(pace, *[(3, 3), *[(3, 3)] * MAX_REFILL_STEPS, (4, 3)] * 60)
    assert pace.refilled < 0.01


def test_waves_refill_nothing():
    """All come together, end one by one, and the next wave comes when the last has ended."""
    pace = Pace()
    run(pace, *[(4, 0), (4, 4), (3, 3), (2, 2), (1, 1)] * 60)
    assert pace.refilled < 0.01


def test_one_request_after_another_says_nothing():
    pace = Pace()
    run(pace, *[(1, 0), (1, 1)] * 60)
    assert pace.refilled == 0.0


def test_examples():
    assert doctest.testmod(row_pace).failed == 0
