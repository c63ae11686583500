"""Confidence that is learned from acceptance."""

from __future__ import annotations

import numpy as np
from doubles import ScriptedDrafter, draft_of, ids

from ngramspec.draft import Draft
from ngramspec.drafters import (
    CalibratedDrafter,
)


def test_calibration_learns_each_place_among_siblings():
    """The second of three siblings is right: it comes first in the end."""
    tree = Draft(ids(1, 2, 3, 4), ids(-1, -1, -1, 1))
    drafter = CalibratedDrafter(ScriptedDrafter(lambda at, gamma: tree.first(gamma)))
    session = drafter.start(ids(0))
    for _ in range(100):
        session.propose(4, tree=True)
        session.extend(ids(2, 4))
    got = session.propose(4, tree=True)
    assert got.tokens.tolist() == [2, 4, 1, 3] or got.tokens.tolist() == [2, 4, 3, 1]
    assert got.parents.tolist() == [-1, 0, -1, -1]
    assert got.confidence[:2].min() > 0.95
    assert got.confidence[2:].max() < 0.05
    flat = np.array([0, 1, 1.01, 1.02, 1.3, 1.31], np.float32)
    assert session.propose(4, flat, tree=True).tokens.tolist() == [2, 4]


def test_calibration_learns_each_tier_and_position():
    """The drafter is right at its first token, and never at its second."""
    inner = ScriptedDrafter(lambda at, gamma: draft_of([1, 2][:gamma]))
    drafter = CalibratedDrafter(inner)
    session = drafter.start(ids(0))
    for _ in range(200):
        session.propose(2)
        session.extend(ids(1, 3))
    other = drafter.start(ids(0)).propose(2)
    assert other.confidence[0] > 0.98
    assert other.confidence[1] < 0.02
    flat = np.array([0, 1, 1.02, 1.04, 1.06], np.float32)
    assert drafter.start(ids(0)).propose(2, flat).tokens.tolist() == [1]
    session.propose(2)
    session.extend(ids(1))  # the second was not judged
    assert drafter.start(ids(0)).propose(2).confidence[1] == other.confidence[1]
