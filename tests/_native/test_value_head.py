"""The value engine with a drafting head equals its twin, and drafts the head's tokens."""

from __future__ import annotations

import numpy as np
import pytest
from value_play import costs, ids, noisy_repetition, same

from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.stores import Corpus
from tests.twins.calibration import Calibration as CalibrationTwin
from tests.twins.store_corpus import CorpusIndex as CorpusTwin
from tests.twins.value import ValueEngine as ValueTwin

OPTIONS = (True, True, True, 2, None, True, True)


def engines(options=OPTIONS):
    return ValueEngine(Calibration(), *options), ValueTwin(CalibrationTwin(), *options)


def head_rows(rng, said, vocab, k=8):
    """A head's rows along a path: often the path's next token, with falling probabilities."""
    k = min(k, vocab)
    found = np.stack([rng.permutation(vocab)[:k] for _ in said]).astype(np.int32)
    for row, token in zip(found, said, strict=True):
        if rng.random() < 0.7:
            row[row == token] = row[0]
            row[0] = token
    log_probs = -np.sort(rng.exponential(1.0, (len(said), k)), axis=1)
    return ids([0, *said[:-1]]), found, log_probs.astype(np.float32)


@pytest.mark.parametrize("slope", [None, 0.0, 0.02, 0.3])
@pytest.mark.parametrize(("seed", "vocab"), [(0, 12), (1, 3), (2, 150)])
def test_native_equals_twin(seed, vocab, slope):
    text = noisy_repetition(seed, 400, vocab)
    rng = np.random.default_rng(seed)
    native, twin = engines()
    used = set()
    for begin in range(0, 390, 4):
        cost = None if slope is None else costs(16, slope)
        for depth in range(int(rng.integers(0, 4))):
            said = text[begin : begin + depth + int(rng.integers(1, 4))].tolist()
            before, found, log_probs = head_rows(rng, said, vocab)
            for engine in (native, twin):
                engine.set_head_rows(before[depth:], found[depth:], log_probs[depth:], depth)
            same(native.draft(16, cost), twin.draft(16, cost))
        ours, theirs = native.draft_tree(16, cost), twin.draft_tree(16, cost)
        if begin % 3:
            ours, theirs = native.draft(16, cost), twin.draft(16, cost)
        same(ours, theirs)
        used |= set(ours[-1].tolist())
        native.extend(text[begin : begin + 4])
        twin.extend(text[begin : begin + 4])
        native.check_integrity()
    assert 6 in used


def test_fixed_tokens_are_drafted_whatever_they_cost():
    rng = np.random.default_rng(0)
    native, twin = engines()
    text = noisy_repetition(0, 200)
    for begin in range(0, 200, 5):
        before, found, log_probs = head_rows(rng, [3, 1, 4], 12)
        shares = np.array([0.001, 0.2], np.float32)
        for engine in (native, twin):
            engine.set_head_rows(before, found, log_probs)
            engine.fix(ids([3, 1]), shares)
        ours, theirs = native.draft(8, costs(8, 0.9)), twin.draft(8, costs(8, 0.9))
        same(ours, theirs)
        assert ours[0][:2].tolist() == [3, 1]
        assert ours[1][:2].tolist() == shares.tolist()
        native.check_integrity()
        native.extend(text[begin : begin + 5])
        twin.extend(text[begin : begin + 5])


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


@pytest.mark.parametrize("seed", range(3))
def test_native_equals_twin_with_a_store(tmp_path, seed):
    pytest.importorskip("pydivsufsort")
    text, rng = noisy_repetition(seed, 240, 30), np.random.default_rng(seed)
    documents = [text[begin : begin + 60].tolist() for begin in range(60, 200, 45)]
    corpus = Corpus.build([ids(each) for each in documents], tmp_path / "c.ngc")
    native = ValueEngine(Calibration(), True, True, True, 2, corpus.index, False, True)
    twin = ValueTwin(CalibrationTwin(), True, True, True, 2, CorpusTwin(documents), False, True)
    for begin in range(0, 230, 5):
        before, found, log_probs = head_rows(rng, text[begin : begin + 3].tolist(), 30)
        for engine in (native, twin):
            engine.set_head_rows(before, found, log_probs)
        if begin % 2:
            same(native.draft(12, costs(12, 0.02)), twin.draft(12, costs(12, 0.02)))
        else:
            same(native.draft_tree(24, costs(24, 0.01)), twin.draft_tree(24, costs(24, 0.01)))
        native.extend(text[begin : begin + 5])
        twin.extend(text[begin : begin + 5])
