"""What it costs that a drafting model reads a text, by the times of the target's forwards."""

from __future__ import annotations

import math

import pytest

from ngramspec.decoding.pace import MIN_PREFILL_POSITIONS, HeadPace, Pace


def test_reading_costs_a_share_of_the_targets_prefill():
    pace = Pace()
    head = HeadPace(pace, 0.25)
    assert head.reading_cost(100) == math.inf  # a draft for the prefill
    pace.record_prefill(6.0, 300)
    assert head.reading_cost(100) == math.inf  # no other forward has been timed
    pace.record(0.5, 1.0, 1)
    assert head.reading_cost(100) == pytest.approx(0.25 * 100 * 0.02 / 0.5)


def test_the_time_of_a_short_prefill_says_nothing_about_long_texts():
    pace = Pace()
    pace.record_prefill(0.5, MIN_PREFILL_POSITIONS - 1)
    pace.record(0.5, 1.0, 1)
    assert HeadPace(pace, 0.25).reading_cost(100) == 0.0
