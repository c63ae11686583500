"""The value engine with a drafting head drafts the head's tokens."""

from __future__ import annotations

import numpy as np
import pytest
from engine_pair import ids

from ngramspec._native.value import Calibration, ValueEngine

OPTIONS = (True, True, True, 2, None, True, True)


def test_a_right_head_is_trusted_and_a_wrong_one_is_not():
    rng = np.random.default_rng(0)
    for right in (True, False):
        engine = ValueEngine(Calibration(), *OPTIONS)
        for token in rng.integers(0, 5000, 300).tolist():
            said = token if right else 5001
            tokens = np.array([[said, *range(6000, 6007)]], np.int32)
            engine.set_head_rows(ids([0]), tokens, np.log(np.full((1, 8), 0.55, np.float32)))
            drafted, confidence, _ = engine.draft(1)
            engine.extend(ids([token]))
        assert (len(drafted) == 1 and confidence[0] > 0.9) == right
        if not right:
            assert not len(drafted) or confidence[0] < 0.1


def test_rows_belong_to_one_step_and_one_path():
    engine = ValueEngine(Calibration(), False, False, False, 2, None, False, True)
    log_probs = np.log(np.array([[0.9], [0.9]], np.float32))
    engine.set_head_rows(ids([0, 5]), ids([[5], [6]]), log_probs)
    assert engine.draft(4)[0].tolist() == [5, 6]
    engine.set_head_rows(ids([7]), ids([[6]]), log_probs[:1], 1)  # the path is not the head's token
    assert engine.draft(4)[0].tolist() == [5]
    engine.extend(ids([5]))
    assert engine.draft(4)[0].tolist() == []


def test_invalid_rows_are_refused():
    log_probs = np.zeros((1, 1), np.float32)
    engine = ValueEngine(Calibration(), *OPTIONS)
    with pytest.raises(ValueError, match="depth"):
        engine.set_head_rows(ids([0]), ids([[1]]), log_probs, 1)
    with pytest.raises(ValueError, match="one length"):
        engine.set_head_rows(ids([0, 1]), ids([[1]]), log_probs)
    with pytest.raises(ValueError, match="-1"):
        engine.set_head_rows(ids([0]), ids([[-1]]), log_probs)
    with pytest.raises(ValueError, match="a row and a share"):
        engine.fix(ids([1]), np.ones(1, np.float32))
    with pytest.raises(ValueError, match="depth"):
        ValueEngine(Calibration()).set_head_rows(ids([0]), ids([[1]]), log_probs)
    engine.check_integrity()
