"""Where texts part: units in the last place by hand, and ties."""

from __future__ import annotations

import math

import torch

from benchmarks.divergence import Divergence, departure, histogram

BFLOAT16 = torch.bfloat16


def test_a_departure_by_hand():
    """Best 20 (token 3), second 19.75 (token 1), which is two units of 1/8; token 0 is 16 away."""
    scores = torch.tensor([18.0, 19.75, 0.0, 20.0])
    second = departure(5, 3, 1, scores, BFLOAT16)
    assert second == Divergence(5, 3, 1, 0.25, 2.0, 0.25, 2.0)
    assert second.is_tie(BFLOAT16)
    assert not second.is_tie(torch.float32)
    third = departure(5, 3, 0, scores, BFLOAT16)  # the two best are near, but it chose another
    assert (third.gap_ulps, third.chosen_gap, third.chosen_ulps) == (2.0, 2.0, 16.0)
    assert not third.is_tie(BFLOAT16)
    for gap, tie in [(1.0, True), (1.125, False)]:  # eight units are a tie
        found = departure(1, 0, 1, torch.tensor([20.0, 20.0 - gap]), BFLOAT16)
        assert (found.chosen_ulps, found.is_tie(BFLOAT16)) == (8 * gap, tie)


def test_the_histogram_counts_every_departure_once():
    gaps = [0.0, 0.5, 1.0, 1.5, 8.0, 8.5, math.inf]
    counts = histogram([Divergence(1, 0, 1, 0.0, gap, 0.0, gap) for gap in gaps])
    assert counts == dict.fromkeys("34567", 0) | {"0": 1, "1": 2, "2": 1, "8": 1, ">8": 2}
