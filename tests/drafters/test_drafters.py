"""The drafters over the native structures, their draft sources, and the registry."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from doubles import ids

from ngramspec import build_drafter
from ngramspec._native import Calibration
from ngramspec.drafters import (
    CopyDrafter,
    NGramDrafter,
    PriorityDrafter,
    UnigramDrafter,
)
from ngramspec.drafters.base import check_draft
from ngramspec.drafters.value import MAX_KINDS, RECURRENCES, Calibrations


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("policy", ["priority", "value"])
@pytest.mark.parametrize("spec", ["copy", "ngram", "unigram", "none", "copy+ngram+unigram", "auto"])
def test_empty_short_and_unknown_contexts(spec, policy, tree):
    session = build_drafter(spec, policy=policy).start(ids())
    assert len(session.propose(4, tree=tree)) == 0
    session.extend(ids(7))
    assert len(session.propose(0, tree=tree)) == 0
    draft = check_draft(session.propose(4, tree=tree), 4, 50, tree=tree, sources=9)
    session.observe(draft, [])
    session.extend(ids())
    session.extend(ids(7))
    assert len(session.propose(4, tree=tree)) <= 4
    session.close()


def test_ngram_chains_on_its_own_predictions():
    session = NGramDrafter().start(ids(1, 2, 3, 4, 5, 9, 1, 2))
    assert session.propose(5).tokens.tolist() == [3, 4, 5, 9, 1]


def test_copy_needs_a_match_of_min_match():
    text = ids(1, 2, 3, 4, 9, 2, 3)
    assert CopyDrafter(2).start(text).propose(3).tokens.tolist() == [4, 9, 2]
    assert len(CopyDrafter(3).start(text).propose(3)) == 0


def test_a_copy_that_reaches_the_end_goes_on_with_its_own_draft():
    assert CopyDrafter(1).start(ids(7, 8, 7, 8, 7)).propose(6).tokens.tolist() == [8, 7] * 3


def test_unigram_drafts_its_one_most_frequent_token():
    session = UnigramDrafter().start(ids(3, 5, 5, 8, 8))
    assert session.propose(6).tokens.tolist() == [8]  # of equals the more recent
    session.extend(ids(5))
    assert session.propose(6).tokens.tolist() == [5]


def test_unigram_gate_closes_on_rejections_probes_and_opens_again():
    drafter = UnigramDrafter(min_acceptance=0.2)
    session = drafter.start(ids(5, 5, 5))
    drafter.learn(9, 9)
    for _ in range(60):
        draft = session.propose(1)
        if len(draft):
            session.observe(draft, [], 1)
    asked = [len(session.propose(1)) for _ in range(64)]
    assert sum(asked) == 2  # closed: one in 32
    other = drafter.start(ids(9))  # the gate is the drafter's, for all its sequences
    assert sum(len(other.propose(1)) for _ in range(31)) <= 1
    drafter.learn(60, 60)
    assert len(session.propose(1)) == 1


def test_drafts_stay_valid_after_the_next_call():
    session = build_drafter("auto").start(ids(1, 2, 3, 4, 1, 2))
    first = session.propose(4)
    before = first.tokens.tolist()
    session.extend(ids(9, 9, 9))
    session.propose(4)
    assert first.tokens.tolist() == before


def test_a_drafter_continues_a_hypothetical_prefix():
    text = ids(1, 2, 3, 4, 5, 6, 7, 8)
    for drafter in (CopyDrafter(2), NGramDrafter()):
        session = drafter.start(text)
        assert len(session.propose(3)) == 0
        assert session.propose_after(ids(3, 4), 3).tokens.tolist() == [5, 6, 7]


def test_a_priority_drafter_has_drafters():
    with pytest.raises(ValueError, match="at least one drafter"):
        PriorityDrafter([])


SHORTEST = 8
different = count(1_000_000)


def prompt(kind, length=SHORTEST):
    """A new prompt that begins with ``length`` tokens of a kind."""
    return np.array([*range(kind, kind + length), *[next(different)] * 70], np.int32)


def recurring(calibrations, kind, length=SHORTEST):
    """The calibration of a kind after enough prompts."""
    return [calibrations.of(prompt(kind, length)) for _ in range(RECURRENCES + 1)][-1]


@pytest.fixture
def calibrations():
    return Calibrations(Calibration())


def test_a_beginning_that_recurs_has_a_calibration_of_its_own(calibrations):
    for _ in range(RECURRENCES):
        assert calibrations.of(prompt(0)) is calibrations.common
    own = calibrations.of(prompt(0))
    assert own is not calibrations.common
    assert calibrations.of(prompt(0)) is own
    assert recurring(calibrations, 100) is not own
    assert recurring(calibrations, 200, SHORTEST - 1) is calibrations.common


def test_the_longest_recurring_beginning_is_the_kind(calibrations):
    general, special = recurring(calibrations, 0), recurring(calibrations, 0, 32)
    assert special is not general
    assert calibrations.of(prompt(0)) is general
    assert calibrations.of(prompt(0, 32)) is special


def test_the_kinds_used_least_recently_are_dropped(calibrations):
    kept, dropped = recurring(calibrations, 0), recurring(calibrations, 100)
    for i in range(2, MAX_KINDS + 1):
        assert calibrations.of(prompt(0)) is kept
        recurring(calibrations, 100 * i)
    assert calibrations.of(prompt(0)) is kept
    assert calibrations.of(prompt(100)) is not dropped


def test_a_kind_begins_with_what_the_others_have_learned():
    drafter = build_drafter("auto")

    def say(kind):
        session = drafter.start(prompt(kind))
        for token in range(20):
            session.propose(4)
            session.extend(np.array([token % 3], np.int32))

    say(5)
    common = drafter.calibrations.common
    learned = common.to_array()
    assert not np.array_equal(learned, Calibration().to_array())
    own = recurring(drafter.calibrations, 700)
    assert np.array_equal(own.to_array(), learned)
    say(700)
    assert not np.array_equal(own.to_array(), learned)
    assert np.array_equal(common.to_array(), learned)
