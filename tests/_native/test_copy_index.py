"""The native copy index against its twin, brute force, and what its documentation promises."""

from __future__ import annotations

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
    copy_index,
    int32,
)

from ngramspec._native.copyindex import CopyIndex
from tests import twins as reference
from tests.twins import longest_repeated_suffix


class CopyMachine(TwinMachine):
    @initialize(ids=VOCABULARIES)
    def make(self, ids):
        self.begin(ids, CopyIndex(), reference.CopyIndex())

    @rule(
        gamma=st.integers(0, 40), prefix=st.lists(INDICES, max_size=10), min_match=st.integers(1, 4)
    )
    def draft(self, gamma, prefix, min_match):
        self.compare(gamma, self.tokens(prefix), min_match)

    @rule(gamma=st.integers(1, 20), start=st.integers(0, 300), length=st.integers(1, 20))
    def draft_after_what_was_there(self, gamma, start, length):
        start %= len(self.text) + 1
        self.compare(gamma, self.text[start : start + length], 1)

    def compare(self, gamma, prefix, min_match):
        draft = self.native.draft(gamma, int32(prefix), min_match)
        assert_same_draft(draft, self.twin.draft(gamma, prefix, min_match))
        length, ends = longest_repeated_suffix(self.text, prefix)
        assert draft[1] == (length if length >= min_match else 0)
        if draft[1]:
            assert draft[0].tolist() in [copied(self.text, prefix, end, gamma) for end in ends]

    @rule(gamma=st.integers(0, 20), most=st.integers(1, 8), min_match=st.integers(1, 4))
    def copies(self, gamma, most, min_match):
        found = [each.tolist() for each in self.native.copies(gamma, most, min_match)]
        assert found == [each.tolist() for each in self.twin.copies(gamma, most, min_match)]
        length, _ = longest_repeated_suffix(self.text, [])
        assert bool(found) == (length >= min_match)
        ends = range(len(self.text))
        assert all(each in [copied(self.text, [], end, gamma) for end in ends] for each in found)

    @rule()
    def check_the_twin(self):
        self.twin.check_integrity()


TestCopyMachine = CopyMachine.TestCase
TestCopyMachine.settings = QUICK


@pytest.mark.slow
class TestCopyMachineLong(CopyMachine.TestCase):
    settings = LONG


def copied(text: list[int], prefix: list[int], end: int, gamma: int) -> list[int]:
    whole = [*text, *prefix]
    for i in range(gamma):
        whole.append(whole[end + i])
    return whole[len(text) + len(prefix) :]


N = 200_000


def bounded(text: np.ndarray) -> CopyIndex:
    index = copy_index(text)  # a quadratic step would take hours
    index.draft(64)
    index.check_integrity()
    assert len(index) == len(text)
    # 2 states and 3 edges (of which one is implicit), arrays grown by a half at most
    assert index.sizeof() <= N * (1.5 * (4 + 16 + 24 + 2 * 16) + 2 * 2 * 4 * 4 / 3)
    return index


def test_long_equal_text():
    index = bounded(np.full(N, 5, np.int32))
    tokens, matched = index.draft(64)
    assert (tokens.tolist(), matched) == ([5] * 64, N - 1)
    index.extend(int32([6]))  # breaks the longest match there can be
    index.check_integrity()
    assert index.draft(4)[1] == 0
    assert index.draft(3, int32([5] * 9))[1] == 9


def test_long_period_of_two_and_long_distinct_text():
    tokens, matched = bounded(np.tile(int32([3, LAST_ID]), N // 2)).draft(5)
    assert (tokens.tolist(), matched) == ([3, LAST_ID, 3, LAST_ID, 3], N - 2)
    text = np.arange(N, dtype=np.int32)
    index = bounded(text)
    assert index.draft(1)[1] == 0
    for at in (0, 1, N // 2, N - 3):
        tokens, matched = index.draft(2, text[max(0, at - 4) : at + 1])
        assert tokens.tolist() == [at + 1, at + 2]
        assert matched == min(5, at + 1)


@pytest.mark.parametrize("vocabulary", [2, 1000])
def test_long_random_text(vocabulary):
    text = np.random.default_rng(7).integers(0, vocabulary, N, np.int32)
    index = bounded(text)
    (token,), length = index.draft(1)
    found = b"".join((text[N - length :].tobytes(), token.tobytes()))
    assert text.tobytes().find(found) % 4 == 0
    for start in range(0, N - 200, N // 40):
        there = text[start : start + 60]  # long enough to be found in one place only
        tokens, matched = index.draft(100, there)
        assert matched >= 60
        np.testing.assert_array_equal(tokens, text[start + 60 : start + 160])
