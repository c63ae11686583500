"""The native unigram counts against their twin, and what their documentation promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis.stateful import initialize, invariant, rule
from native_strategies import (
    LAST_ID,
    LONG,
    QUICK,
    TOKEN_IDS,
    VOCABULARIES,
    TwinMachine,
    int32,
)

from ngramspec._native.unigram import UnigramCounts
from tests import twins as reference


class UnigramMachine(TwinMachine):
    @initialize(ids=VOCABULARIES)
    def make(self, ids):
        self.begin(ids, UnigramCounts(), reference.UnigramCounts())

    @rule(token=TOKEN_IDS)
    def look_up(self, token):
        for any_token in (token, *self.ids):
            assert self.native.count(any_token) == self.twin.count(any_token)

    @invariant()
    def same_best(self):
        assert self.native.best() == self.twin.best()


TestUnigramMachine = UnigramMachine.TestCase
TestUnigramMachine.settings = QUICK


@pytest.mark.slow
class TestUnigramMachineLong(UnigramMachine.TestCase):
    settings = LONG


def test_worked_example():
    counts = UnigramCounts()
    assert (len(counts), counts.best(), counts.count(4)) == (0, None, 0)
    counts.extend(int32([]))
    assert counts.best() is None
    counts.extend(int32([4]))
    assert counts.best() == (4, 1)
    counts.extend(int32([9]))
    assert counts.best() == (9, 1)  # as often, but later
    counts.extend(int32([4, 9, LAST_ID, 4]))
    assert counts.best() == (4, 3)
    assert [counts.count(token) for token in (4, 9, LAST_ID, 5)] == [3, 2, 1, 0]
    assert len(counts) == 6
    counts.check_integrity()


@pytest.mark.parametrize("step", [1, 64, 2**20])
def test_around_each_growth(step):
    """64 slots, doubled before they are more than 2/3 full: at 43, 86, ... distinct tokens."""
    counts = UnigramCounts()
    for n in range(1000):
        counts.extend(int32([n * step]))
        counts.check_integrity()
        assert counts.best() == (n * step, 1)
        if n in (41, 42, 43, 84, 85, 86, 999):
            assert [counts.count(i * step) for i in range(n + 2)] == [1] * (n + 1) + [0]


@pytest.mark.parametrize("name", ["equal", "period", "random", "distinct"])
def test_long_texts_in_bounded_time(name):
    n = 200_000
    text = {
        "equal": np.full(n, LAST_ID, np.int32),
        "period": np.tile(int32([3, 4]), n // 2),
        "random": np.random.default_rng(1).integers(0, 1000, n, np.int32),
        "distinct": np.arange(n, dtype=np.int32),
    }[name]
    counts = UnigramCounts()
    counts.extend(text)  # a quadratic step would take hours
    counts.check_integrity()
    expected = Counter(text.tolist())
    most = max(expected.values())
    last = next(token for token in text[::-1].tolist() if expected[token] == most)
    assert counts.best() == (last, most)
    assert all(counts.count(token) == expected[token] for token in text[:500].tolist())
