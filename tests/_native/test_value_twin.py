"""The value engine equals its twin, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from value_play import costs, ids, noisy_repetition, play, same

from ngramspec._native.value import Calibration, ValueEngine
from ngramspec.draft import Draft
from ngramspec.drafters.base import check_draft
from tests.twins.calibration import Calibration as CalibrationTwin
from tests.twins.value import ValueEngine as ValueTwin


@pytest.mark.parametrize("slope", [None, 0.0, 0.02, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_native_equals_twin_on_noisy_repetition(seed, slope):
    text = noisy_repetition(seed, 240)
    cost = None if slope is None else costs(9, slope)
    native = play(ValueEngine(Calibration()), text, 20, 9, cost)
    twin = play(ValueTwin(CalibrationTwin()), text, 20, 9, cost)
    assert native[0] == twin[0]
    for (tokens, confidence, source), (t_tokens, t_confidence, t_source) in zip(
        native[4], twin[4], strict=True
    ):
        assert tokens == t_tokens
        assert source == t_source
        assert confidence.tolist() == t_confidence.tolist()


OPTIONS = [
    (True, True, True, 2),
    (True, False, False, 2),
    (False, True, False, 2),
    (False, False, True, 2),
    (True, False, True, 1),
    (True, True, True, 5),
]


@pytest.mark.parametrize("slope", [None, 0.0, 0.002, 0.05])
@pytest.mark.parametrize(("seed", "vocab"), [(0, 12), (1, 3), (2, 150)])
def test_native_trees_equal_the_twins(seed, vocab, slope):
    text = noisy_repetition(seed, 240, vocab)
    cost = None if slope is None else costs(32, slope)
    native, twin = (
        ValueEngine(Calibration()),
        ValueTwin(CalibrationTwin()),
    )
    for begin in range(0, len(text), 5):
        same(native.draft_tree(32, cost), twin.draft_tree(32, cost))
        native.extend(text[begin : begin + 5])
        twin.extend(text[begin : begin + 5])


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=7), max_size=14),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=14, max_size=14),
    st.sampled_from(OPTIONS),
)
def test_native_equals_twin_in_chains_and_trees_by_turns(chunks, asked, options):
    native = ValueEngine(Calibration(), *options)
    twin = ValueTwin(CalibrationTwin(), *options)
    for chunk, (gamma, tree) in zip(chunks, asked, strict=False):
        if tree:
            ours, theirs = native.draft_tree(gamma), twin.draft_tree(gamma)
            same(ours, theirs)
            check_draft(Draft(ours[0], ours[1]), gamma, 4, tree=True)
        else:
            same(native.draft(gamma), twin.draft(gamma))
        native.extend(ids(chunk))
        twin.extend(ids(chunk))


def test_trees_after_a_long_text_equal_the_twins():
    """Recent tokens are counted when a tree first asks for them, as far back as they can matter."""
    text = noisy_repetition(0, 6000, vocab=300)
    native = ValueEngine(Calibration())
    twin = ValueTwin(CalibrationTwin())
    for part in (text[:5000], text[5000:5100], text[5100:5103]):
        native.extend(part)
        twin.extend(part)
        same(native.draft_tree(64), twin.draft_tree(64))
        assert native.draft(8)[0].tolist() == twin.draft(8)[0].tolist()


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=7), max_size=14),
    st.lists(st.integers(0, 9), min_size=14, max_size=14),
    st.sampled_from(OPTIONS),
)
def test_native_equals_twin_on_any_sequence_of_calls(chunks, gammas, options):
    native = ValueEngine(Calibration(), *options)
    twin = ValueTwin(CalibrationTwin(), *options)
    for chunk, gamma in zip(chunks, gammas, strict=False):
        same(native.draft(gamma), twin.draft(gamma))
        native.extend(ids(chunk))
        twin.extend(ids(chunk))
        native.check_integrity()


@pytest.mark.parametrize(("seed", "n"), [(0, 600), (1, 600), (2, 600), (3, 9000)])
def test_native_equals_twin_whatever_is_committed_at_once(seed, n):
    """Commits of any length, with and without a draft before them, and enough to fade counts."""
    rng = np.random.default_rng(seed)
    text = noisy_repetition(seed, n, vocab=30)
    native = ValueEngine(Calibration())
    twin = ValueTwin(CalibrationTwin())
    at = 0
    while at < len(text):
        chunk = text[at : at + rng.integers(1, 9)]
        native.extend(chunk)
        twin.extend(chunk)
        at += len(chunk)
        if rng.random() < 0.8:
            same(native.draft(9), twin.draft(9))
