"""The native unigram counts against their twin, and what their documentation promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis.stateful import initialize, invariant, rule
from native_strategies import (
    LAST_ID,
    LONG,
    NOT_TOKENS,
    QUICK,
    TOKEN_IDS,
    VOCABULARIES,
    TwinMachine,
    int32,
    needs_rlimit,
    run_beside,
    run_short_of_memory,
)

from ngramspec._native.unigram import UnigramCounts
from tests import twins as reference

BOTH = pytest.mark.parametrize("counts_type", [UnigramCounts, reference.UnigramCounts])


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
        assert self.native.share == self.twin.share


TestUnigramMachine = UnigramMachine.TestCase
TestUnigramMachine.settings = QUICK


@pytest.mark.slow
class TestUnigramMachineLong(UnigramMachine.TestCase):
    settings = LONG


@BOTH
def test_worked_example(counts_type):
    counts = counts_type()
    assert (len(counts), counts.best(), counts.share, counts.count(4)) == (0, None, 0.0, 0)
    counts.extend(int32([]))
    assert counts.best() is None
    counts.extend(int32([4]))
    assert (counts.best(), counts.share) == ((4, 1), 1.0)
    counts.extend(int32([9]))
    assert (counts.best(), counts.share) == ((9, 1), 0.5)  # as often, but later
    counts.extend(int32([4, 9, LAST_ID, 4]))
    assert (counts.best(), counts.share) == ((4, 3), 0.5)
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


def example() -> UnigramCounts:
    counts = UnigramCounts()
    counts.extend(int32([1, 2, 2, 3]))
    return counts


def assert_as_before(counts: UnigramCounts) -> None:
    counts.check_integrity()
    assert (len(counts), counts.best(), counts.count(8)) == (4, (2, 2), 0)
    counts.extend(int32([3]))  # still open for more
    assert counts.best() == (3, 2)


@pytest.mark.parametrize(("tokens", "said"), NOT_TOKENS)
def test_extend_refuses_what_is_no_int32_array(tokens, said):
    counts = example()
    with pytest.raises(TypeError, match=rf"^tokens must .*int32 array, got {said}"):
        counts.extend(tokens)
    assert_as_before(counts)


def test_extend_refuses_negative_ids_and_counts_nothing():
    counts = example()
    with pytest.raises(ValueError, match=r"token ids must be >= 0, got -5 at index 2"):
        counts.extend(int32([8, 9, -5, 8]))
    assert_as_before(counts)


def test_read_only_arrays_are_taken():
    text = int32([1, 2, 2])
    text.flags.writeable = False
    counts = UnigramCounts()
    counts.extend(text)
    assert counts.best() == (2, 2)


def test_two_threads_are_kept_apart():
    text = np.random.default_rng(5).integers(0, LAST_ID, 3_000_000, np.int32)
    counts = UnigramCounts()
    refused = run_beside(
        lambda: counts.extend(text),
        {
            "best": counts.best,
            "share": lambda: counts.share,
            "count": lambda: counts.count(1),
            "check_integrity": counts.check_integrity,
        },
    )
    assert min(refused.values()) > 0, refused
    assert len(counts) == len(text)
    counts.extend(text[:5])
    counts.check_integrity()


@needs_rlimit
def test_lack_of_memory_leaves_valid_counts():
    run_short_of_memory("""
for headroom in (2 * MB, 9 * MB):
    stream = np.repeat(rng.permutation(2**20).astype(np.int32), 2)
    counts, fresh = UnigramCounts(), UnigramCounts()
    n = fill(counts, stream, headroom)
    assert len(counts) == n
    fresh.extend(stream[:n])
    for step in range(2):
        counts.check_integrity()
        assert len(counts) == len(fresh)
        assert counts.best() == fresh.best()
        assert all(counts.count(token) == fresh.count(token) for token in range(0, 2**20, 1001))
        counts.extend(stream[n : n + 50_000])
        fresh.extend(stream[n : n + 50_000])
""")
