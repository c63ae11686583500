"""The native n-gram table against its twin, xxhash, and what its documentation promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from native_strategies import (
    INDICES,
    LAST_ID,
    LONG,
    QUICK,
    VOCABULARIES,
    TwinMachine,
    assert_same_draft,
    int32,
)

from ngramspec._native.ngram import NGramTable
from tests import twins as reference


class NGramMachine(TwinMachine):
    @initialize(
        ids=VOCABULARIES,
        order=st.integers(1, 8),
        beyond=st.one_of(st.none(), st.sampled_from([0, 1, 2, 9, 56])),
    )
    def make(self, ids, order, beyond):
        window = None if beyond is None else order + beyond
        self.begin(ids, NGramTable(order, window), reference.NGramTable(order, window))

    @rule(gamma=st.integers(0, 20), prefix=st.lists(INDICES, max_size=10))
    def draft(self, gamma, prefix):
        prefix = self.tokens(prefix)
        assert_same_draft(self.native.draft(gamma, int32(prefix)), self.twin.draft(gamma, prefix))

    @rule(end=st.integers(0, 400), n=st.integers(1, 7), k=st.integers(1, 13))
    def look_up_text(self, end, n, k):
        n = min(n, self.native.order - 1)
        end = max(len(self.text) - end, n)
        if end <= len(self.text):
            self.look_up(self.text[end - n : end], k)

    @rule(context=st.lists(INDICES, min_size=1, max_size=7), k=st.integers(1, 3))
    def look_up_any(self, context, k):
        self.look_up(self.tokens(context)[: self.native.order - 1], k)

    def look_up(self, context, k):
        array = int32(context)
        assert self.native.top_k(array, k) == self.twin.top_k(context, k)
        assert sorted(self.native.top_k(array, 999)) == sorted(self.twin.top_k(context, 999))
        assert self.native.total(array) == self.twin.total(context)


TestNGramMachine = NGramMachine.TestCase
TestNGramMachine.settings = QUICK


@pytest.mark.slow
class TestNGramMachineLong(NGramMachine.TestCase):
    settings = LONG


THE, CAT, SAT, ON, MAT, STOP, DOWN, A, CHAIR = range(9)
STORY = [
    *(THE, MAT, STOP),
    *(THE, CAT, SAT, ON, A, CHAIR),
    *(THE, CAT, SAT, DOWN),
    *(THE, CAT, SAT, ON, THE, MAT),
]


def test_worked_example():
    table = NGramTable(4)
    table.extend(int32(STORY))
    sat = int32([THE, CAT, SAT])
    assert table.top_k(sat, 9) == [(ON, 2), (DOWN, 1)]
    assert table.total(sat) == 3
    assert table.top_k(int32([CAT, SAT, ON]), 1) == [(THE, 1)]  # as often as A, but later
    assert table.top_k(int32([ON, THE, MAT]), 1) == []  # the end of the text: nothing followed
    assert table.top_k(int32([THE]), 9) == [(CAT, 3), (MAT, 2)]
    tokens, orders = table.draft(4, sat)
    assert tokens.tolist() == [ON, THE, MAT, STOP]
    assert orders.tolist() == [4, 4, 4, 3]  # (ON, THE, MAT) is unknown, (THE, MAT) is not


def test_appending_has_room_for_its_worst_case():
    """One token that needs 17 new buckets: four to forget by, fourteen to count by, one free.

    The sweep over fillers passes the sizes at which the array of buckets is just about full.
    """
    fresh = iter(range(1000, 10**6))
    old, aside, new = range(1, 6), range(11, 16), range(20, 27)
    for fillers in range(60):
        text = [*old, next(fresh)] * 2
        for depth in range(4, 0, -1):  # each prefix of old: two continuations, equally often
            for _ in range(2 ** (5 - depth)):
                text += [*old[:depth], aside[depth], next(fresh)]
        for _ in range(fillers):
            hub = next(fresh)
            text += [hub, next(fresh), hub, next(fresh)]
        text += [*new, 30, *new, 30, *new]
        table = NGramTable(8, window=len(text))
        table.extend(int32(text))
        table.extend(int32([31]))
        table.check_integrity()


@pytest.mark.parametrize("vocabulary", [2, 50, LAST_ID])
def test_size_stays_bounded_in_a_long_stream(vocabulary):
    stream = np.random.default_rng(2).integers(0, vocabulary, 200_000, np.int32)
    table, fresh = NGramTable(4, window=512), NGramTable(4, window=512)
    table.extend(stream)
    fresh.extend(stream[-512:])
    table.check_integrity()
    assert table.sizeof() <= 2 * fresh.sizeof()


N = 200_000
LONG_TEXTS = {
    "equal": np.zeros(N, np.int32),
    "period": np.tile(int32([3, LAST_ID]), N // 2),
    "binary": np.random.default_rng(3).integers(0, 2, N, np.int32),
    "random": np.random.default_rng(4).integers(0, 1000, N, np.int32),
    "distinct": np.arange(N, dtype=np.int32),
}


@pytest.mark.parametrize("window", [None, 1000])
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_long_texts_in_bounded_time(name, window):
    text, unigrams = LONG_TEXTS[name], NGramTable(1, window)
    unigrams.extend(text)
    unigrams.check_integrity()
    table = NGramTable(4, window)
    table.extend(text)  # a quadratic step would take hours
    tokens, orders = table.draft(64)
    table.check_integrity()
    last = text if window is None else text[-window:]
    assert len(table) == len(last)
    assert dict(unigrams.top_k(int32([]), N)) == Counter(last.tolist())
    for token in last[:3]:
        expected = Counter(last[1:][last[:-1] == token].tolist())
        found = table.top_k(int32([token]), 2000)
        assert dict(found) == expected
        assert table.total(int32([token])) == expected.total()
    if name == "distinct":
        assert tokens.size == 0
    if name in ("equal", "period"):
        np.testing.assert_array_equal(tokens, text[:64])
        assert (orders == 4).all()
