"""Requests whose prompts begin alike learn together, and apart from others."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from ngramspec._native import Calibration
from ngramspec.drafters import build_drafter
from ngramspec.drafters.value import MAX_KINDS, RECURRENCES, Calibrations

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
