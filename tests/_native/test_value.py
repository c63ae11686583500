"""The value engine learns, resumes copies, and ends its chains and trees where that pays."""

from __future__ import annotations

import numpy as np
import pytest
from engine_pair import costs, ids, noisy_repetition, play

from ngramspec._native.value import Calibration, ValueEngine


def test_sequences_of_a_drafter_share_what_was_learned_and_no_text():
    shared, fresh = Calibration(), Calibration()
    before = shared.to_array()
    assert np.array_equal(before, fresh.to_array())
    play(ValueEngine(shared), noisy_repetition(1, 600), 40, 8)
    learned = shared.to_array()
    assert not np.array_equal(before, learned)
    other = ValueEngine(shared)
    other.extend(ids([3, 1]))
    assert set(other.draft(5)[0].tolist()) <= {1, 3}  # nothing of the first text comes back
    relabelled = Calibration()  # the same text in other token ids teaches exactly the same
    play(ValueEngine(relabelled), noisy_repetition(1, 600) + 1000, 40, 8)
    assert np.array_equal(relabelled.to_array(), learned)


@pytest.mark.parametrize("tree", [False, True])
def test_confidence_is_calibrated(tree):
    """Of the tokens judged with confidence p, first and last candidates, about p is accepted."""
    calibration = Calibration()
    probabilities, outcomes = [], []
    for seed in range(40):
        text = noisy_repetition(seed, 900, noise=0.15)
        p, y, _ = play(ValueEngine(calibration), text, 100, 16 if tree else 8, tree=tree)
        if seed >= 10:
            probabilities += p
            outcomes += y
    p, y = np.array(probabilities), np.array(outcomes)
    for low, high in ((0, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1)):
        inside = (p >= low) & (p < high)
        if inside.sum() >= 300:
            assert abs(p[inside].mean() - y[inside].mean()) < 0.25 * (low + high) / 2 + 0.02
    assert abs(p.mean() - y.mean()) < 0.03


@pytest.mark.parametrize("tree", [False, True])
def test_drafts_are_longer_where_positions_are_cheaper(tree):
    """Of the sizes up to the budget, the one where expected tokens per cost are highest."""
    text, lengths = noisy_repetition(3, 900), []
    for slope in (0.0, 0.05, 0.3, 2.0):
        engine = ValueEngine(Calibration())
        *_, drafts = play(engine, text, 300, 32, costs(32, slope), tree=tree)
        lengths.append(np.mean([len(each) for each in drafts]))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 0.3 < 5 < lengths[0]


def test_on_a_long_verbatim_match_drafts_are_long_at_once():
    text = ids(range(400))
    for gamma in (64, 256):
        engine = ValueEngine(Calibration())  # without any experience
        engine.extend(np.concatenate((text, text[:60])))
        tokens, confidence, _ = engine.draft(gamma, costs(gamma, 0.001))
        assert tokens.tolist() == text[60 : 60 + gamma].tolist()
        assert confidence.min() > 0.95


def test_a_copy_is_resumed_behind_a_substituted_token():
    """After the one changed token, the old copy goes on though nothing matches yet."""
    base = list(range(100, 140))
    engine = ValueEngine(Calibration())
    engine.extend(ids([*base, *base[:6]]))
    for upto in (8, 10, 12):
        assert engine.draft(2)[0].tolist() == base[upto - 2 : upto]
        engine.extend(ids(base[upto - 2 : upto]))
    engine.draft(4)
    engine.extend(ids([7777]))  # instead of base[12]
    tokens, _, source = engine.draft(4)
    assert tokens.tolist() == base[13:17]
    assert set(source.tolist()) == {1}


def test_a_copy_is_found_again_behind_a_deletion():
    """The output leaves out three tokens of its source; one token after them is enough."""
    base = list(range(100, 140))
    engine = ValueEngine(Calibration(), counts=False)
    engine.extend(ids([base[16], 7, *base, 8, base[16], 9, *base[:6]]))  # its last place is not it
    for upto in (8, 10, 12):
        assert engine.draft(2)[0].tolist() == base[upto - 2 : upto]
        engine.extend(ids(base[upto - 2 : upto]))
    engine.draft(4)
    engine.extend(ids([base[16]]))
    tokens, _, source = engine.draft(3)
    assert tokens.tolist() == base[17:20]
    assert set(source.tolist()) == {1}


def test_the_worst_inputs_are_bounded():
    for text in (np.zeros(5000), np.arange(5000) % 2, np.arange(5000)):
        engine = ValueEngine(Calibration())
        engine.extend(text.astype(np.int32))
        tokens, confidence, source = engine.draft(256, costs(256, 0.0))
        assert len(tokens) == len(confidence) == len(source) <= 256
        assert np.isfinite(confidence).all()
        assert engine.sizeof() < 400 * 5000


def test_bad_arguments_are_named():
    engine = ValueEngine(Calibration())
    engine.extend(ids([1, 2, 1, 2]))
    with pytest.raises(ValueError, match="gamma must be >= 0, got -1"):
        engine.draft(-1)
    for draft in (engine.draft, engine.draft_tree):
        for gamma in (2**16 + 1, 2**31 - 2, 2**31 - 1, 2**40):
            with pytest.raises(ValueError, match=f"gamma must be <= 65536, got {gamma}"):
                draft(gamma, costs(8, 0.1))
        assert 1 <= len(draft(2**16)[0]) <= 2**16
    with pytest.raises(ValueError, match="min_match must be >= 1, got 0"):
        ValueEngine(Calibration(), min_match=0)
    with pytest.raises(ValueError, match="cost must have 6 entries, got 3"):
        engine.draft(4, costs(1, 0.1))
    assert len(engine.draft(2)[0]) == 2


def test_tokens_used_lately_are_drafted_where_nothing_else_is_known():
    engine = ValueEngine(Calibration())
    engine.extend(ids([5, 6, 7, 8]))  # nothing followed 8 yet
    tokens, parents, confidence, source = engine.draft_tree(16)
    assert set(tokens[parents == -1].tolist()) == {5, 6, 7, 8}
    assert 3 in set(source.tolist()) <= {2, 3}  # after 5, 6 and 7 their own continuation
    assert 0 < confidence[parents == -1].min() < 0.2
    without = ValueEngine(Calibration(), falls_back=False)
    without.extend(ids([5, 6, 7, 8]))
    assert len(without.draft_tree(8)[0]) == 0
