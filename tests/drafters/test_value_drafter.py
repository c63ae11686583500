"""What a drafter expects at first, and which of its requests learn together."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from ngramspec._native import Calibration
from ngramspec.drafters import build_drafter
from ngramspec.drafters.value import MAX_KINDS, RECURRENCES, Calibrations
from ngramspec.measure.traces import read_traces

TRACES = Path(__file__).parents[2] / "benchmarks" / "public" / "traces.jsonl"

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


def test_new_drafters_expect_about_what_comes_true():
    """In recorded texts, of one probable candidate and of several that compete."""
    expected, right = [0.0, 0.0], [0, 0]
    for trace in read_traces(TRACES)[::3]:
        session = build_drafter("auto").start(trace.prompt)
        for at, token in enumerate(trace.output[:64].tolist()):
            draft = session.propose(8, tree=True)
            roots = draft.parents < 0
            first, reach = draft.tokens[roots], float(draft.confidence[roots].sum())
            if reach > 0.5:
                expected[len(first) > 1] += reach
                right[len(first) > 1] += token in first
            session.extend(trace.output[at : at + 1])
    assert expected[0] == pytest.approx(right[0], rel=0.1)
    assert expected[1] == pytest.approx(right[1], rel=0.25)
