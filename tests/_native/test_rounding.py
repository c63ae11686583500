"""The value engine and its twin round alike: the same drafts and the same confidence, bit by bit.

Where two candidates are equal but for rounding, one unit in the last place decides what is drafted
and so what is learned; nothing less than equality holds over hundreds of thousands of proposals.
"""

from __future__ import annotations

import numpy as np
import pytest
from value_play import costs, noisy_repetition

from ngramspec._native.value import Calibration, ValueEngine
from tests.twins.calibration import Calibration as CalibrationTwin
from tests.twins.calibration import log, squash
from tests.twins.value import ValueEngine as ValueTwin

GAMMA = 16


def compared(seed: int) -> int:
    """Propose in chains and trees along a text of its own; how many proposals were the same."""
    rng = np.random.default_rng(seed)
    text = noisy_repetition(seed, 600, int(rng.integers(3, 200)), rng.uniform(0, 0.4))
    cost = (None, costs(GAMMA, 0.02), costs(GAMMA, 0.0))[seed % 3]
    native = ValueEngine(Calibration())
    twin = ValueTwin(CalibrationTwin())
    at = proposals = 0
    while at < len(text):
        chunk = text[at : at + rng.integers(1, 9)]
        native.extend(chunk)
        twin.extend(chunk)
        at += len(chunk)
        if rng.random() < 0.5:
            ours, theirs = native.draft(GAMMA, cost), twin.draft(GAMMA, cost)
        else:
            ours, theirs = native.draft_tree(GAMMA, cost), twin.draft_tree(GAMMA, cost)
        for each, other in zip(ours, theirs, strict=True):
            assert each.dtype == other.dtype
            assert each.tolist() == other.tolist(), f"seed {seed}, {at} tokens"
        proposals += 1
    return proposals


def test_a_thousand_proposals_are_the_same_to_the_last_bit():
    assert sum(map(compared, range(9))) > 1000


@pytest.mark.slow
def test_two_hundred_thousand_proposals_are_the_same_to_the_last_bit():
    proposals, seed = 0, 1000
    while proposals < 200_000:
        proposals += compared(seed)
        seed += 1


def test_logarithms_and_probabilities_are_near_the_true_ones():
    """The shared arithmetic is checked by itself, since the comparison cannot see it wrong."""
    for x in np.geomspace(1e-6, 1e4, 500).astype(np.float32):
        assert abs(float(log(x)) - np.log(float(x))) < 2e-6
    for odds in np.linspace(-12, 12, 200).astype(np.float32):
        expected = 1 / (1 + np.exp(-np.float64(odds)))
        assert float(squash(odds)) == pytest.approx(expected, rel=1e-6)
