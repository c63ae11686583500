"""The value engine drafts what models find most probable: the target, and a drafting head."""

from __future__ import annotations

import numpy as np
import pytest
from engine_pair import ids

from ngramspec._native.value import Calibration, ValueEngine

OPTIONS = (True, True, True, 2, None, True)
HEADED = (*OPTIONS, True)


def test_top_tokens_are_branches_by_what_the_target_thought_of_them():
    engine = ValueEngine(Calibration(), *OPTIONS)
    engine.extend(ids([1, 2, 3, 4]))
    found = np.array([[3, 9, 8]], np.int32)
    engine.recycle(ids([4]), found, np.log(np.array([[0.6, 0.3, 0.005]], np.float32)))
    tokens, parents, confidence, source = engine.draft_tree(16)
    first = {
        int(token): (float(p), int(each))
        for token, p, each, parent in zip(tokens, confidence, source, parents, strict=True)
        if parent == -1
    }
    assert first[3][0] > first[9][0] > 0
    assert first[3][1] == first[9][1] == 5
    assert 8 not in first  # too faint
    plain = ValueEngine(Calibration())
    plain.extend(ids([1, 2, 3, 4]))
    assert 9 not in plain.draft_tree(16)[0]


def test_it_learns_what_the_targets_probabilities_are_worth():
    """Where the first top-k candidate is always right, its confidence rises."""
    engine = ValueEngine(Calibration(), False, False, False, 2, None, True)
    rng = np.random.default_rng(0)
    log_probs = np.log(np.array([[0.6, 0.3]], np.float32))
    confidence, token = [], 0
    for _ in range(200):
        after = int(rng.integers(0, 50))
        engine.extend(ids([token]))
        engine.recycle(ids([token]), ids([[after, 60]]), log_probs)
        confidence.append(float(engine.draft(1)[1][0]))
        token = after
    assert confidence[-1] > 0.85 > confidence[0]


def test_what_the_target_left_unemitted_is_offered_next():
    """At the last position it said 4, and found 30 and 31 possible: one of them may follow."""
    engine = ValueEngine(Calibration(), *OPTIONS)
    engine.extend(ids([1, 2, 3]))
    found = np.array([[4, 30, 31]], np.int32)
    log_probs = np.log(np.array([[0.6, 0.2, 0.1]], np.float32))
    engine.recycle(ids([3]), found, log_probs, (0,))
    engine.extend(ids([4]))
    tokens, parents, confidence, source = engine.draft_tree(32)
    first = dict(zip(tokens[parents == -1].tolist(), source[parents == -1], strict=True))
    assert first[30] == first[31] == 5
    before = float(confidence[tokens.tolist().index(30)])
    engine.extend(ids([8] * 5))  # too long ago
    assert not {30, 31} & set(engine.draft_tree(32)[0].tolist())
    for _ in range(60):  # it learns how often that comes true
        engine.extend(ids([3]))
        engine.draft_tree(32)
        engine.recycle(ids([3]), found, log_probs, (0,))
        engine.extend(ids([4]))
        engine.draft_tree(32)
        engine.extend(ids([30]))
    engine = ValueEngine(engine.calibration, *OPTIONS)
    engine.extend(ids([1, 2, 3]))
    engine.recycle(ids([3]), found, log_probs, (0,))
    engine.extend(ids([4]))
    tokens, _, confidence, _ = engine.draft_tree(32)
    assert float(confidence[tokens.tolist().index(30)]) > before


def test_wrong_rows_are_refused_and_nothing_is_kept():
    engine = ValueEngine(Calibration(), *OPTIONS)
    before = engine.sizeof()
    found, log_probs = np.array([[1, 2]], np.int32), np.zeros((1, 2), np.float32)
    for bad in (
        (ids([1, 2]), found, log_probs),
        (ids([1]), found, log_probs[:, :1].copy()),
        (ids([-1]), found, log_probs),
        (ids([1]), -found, log_probs),
    ):
        with pytest.raises(ValueError, match=r"rows of one length|must be >= 0"):
            engine.recycle(*bad)
    with pytest.raises(IndexError, match="accepted must be indices below 1, got 1"):
        engine.recycle(ids([1]), found, log_probs, (0, 1))
    with pytest.raises((TypeError, ValueError)):
        engine.recycle(ids([1]), found.astype(np.int64), log_probs)
    assert engine.sizeof() == before
    engine.recycle(ids([1000]), found, log_probs)
    assert before + 4000 < engine.sizeof() < before + 8000
    without = ValueEngine(Calibration())
    without.recycle(ids([1]), found, log_probs)


def test_a_right_head_is_trusted_and_a_wrong_one_is_not():
    rng = np.random.default_rng(0)
    for right in (True, False):
        engine = ValueEngine(Calibration(), *HEADED)
        for token in rng.integers(0, 5000, 300).tolist():
            said = token if right else 5001
            tokens = np.array([[said, *range(6000, 6007)]], np.int32)
            engine.set_head_rows(ids([0]), tokens, np.log(np.full((1, 8), 0.55, np.float32)))
            drafted, confidence, _ = engine.draft(1)
            engine.extend(ids([token]))
        assert (len(drafted) == 1 and confidence[0] > 0.9) == right
        if not right:
            assert not len(drafted) or confidence[0] < 0.1


def test_invalid_rows_are_refused():
    log_probs = np.zeros((1, 1), np.float32)
    engine = ValueEngine(Calibration(), *HEADED)
    for before, token, depth, said in (
        ([0], 1, 1, "depth"),
        ([0, 1], 1, 0, "one length"),
        ([0], -1, 0, "-1"),
    ):
        with pytest.raises(ValueError, match=said):
            engine.set_head_rows(ids(before), ids([[token]]), log_probs, depth)
    with pytest.raises(ValueError, match="a row and a share"):
        engine.fix(ids([1]), np.ones(1, np.float32))
    with pytest.raises(ValueError, match="depth"):
        ValueEngine(Calibration()).set_head_rows(ids([0]), ids([[1]]), log_probs)
    engine.check_integrity()
