"""The context table equals its twin, through growth and fading, and keeps its invariants."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from native_strategies import MISALIGNED, int32

from ngramspec._native.value import ContextTable
from tests.twins.text import ContextTable as ContextTableTwin


class Machine(RuleBasedStateMachine):
    """Counts in both; few tokens, so that contexts meet again."""

    def __init__(self):
        super().__init__()
        self.native, self.twin, self.at = ContextTable(), ContextTableTwin(), 0
        self.asked = set()

    def count(self, context, token, seed):
        self.native.add(int32(context), token, self.at, seed)
        self.twin.add(context, token, self.at, seed)
        self.at += 1

    @rule(
        context=st.lists(st.integers(0, 2), max_size=7),
        token=st.integers(0, 6),
        seed=st.integers(0, 2),
        times=st.sampled_from([1, 2, 130, 260]),
    )
    def add(self, context, token, seed, times):
        for _ in range(times):
            self.count(context, token, seed)
        self.asked.add((seed, tuple(context)))

    @rule(first=st.integers(0, 5000), n=st.sampled_from([1, 190, 400]))
    def add_many(self, first, n):
        for context in range(first, first + n):
            self.count([context], context % 5, 9)
        self.asked.add((9, (first + n - 1,)))

    @rule(context=st.lists(st.integers(0, 6000), max_size=2))
    def ask(self, context):
        assert self.native.get(int32(context)) == self.twin.get(context)

    @invariant()
    def equal(self):
        assert len(self.native) == len(self.twin)
        for seed, context in self.asked:
            assert self.native.get(int32(context), seed) == self.twin.get(context, seed)
        self.native.check_integrity()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=20)


def test_a_new_continuation_takes_the_place_of_the_rarest():
    table = ContextTable()
    for at, token in enumerate([5, 6, 6, 7, 5, 8]):
        table.add(int32([1]), token, at)
    assert table.get(int32([1])) == ([(8, 1), (5, 2), (6, 2)], 6, 5)  # 7 had the lowest count


def test_counts_fade_by_half():
    table = ContextTable()
    for at in range(254):
        table.add(int32([]), 3 if at % 2 else 4, at)
    assert table.get(int32([])) == ([(3, 127), (4, 127)], 254, 253)
    table.add(int32([]), 4, 254)
    assert table.get(int32([])) == ([(4, 64), (3, 63)], 127, 254)


def test_many_contexts_stay_small_and_are_all_found():
    table = ContextTable()
    for at in range(60_000):
        table.add(int32([at, at + 1]), 7, at)
    table.check_integrity()
    assert len(table) == 60_000
    assert all(table.get(int32([at, at + 1])) == ([(7, 1)], 1, at) for at in range(0, 60_000, 97))
    assert table.sizeof() < 100 * 60_000


def test_bad_contexts_are_named():
    with pytest.raises(ValueError, match=r"0\.\.7 tokens, got 8"):
        ContextTable().get(int32(range(8)))
    for context in ([1], MISALIGNED, memoryview(MISALIGNED)):
        with pytest.raises(TypeError, match="int32"):
            ContextTable().add(context, 2, 0)
    with pytest.raises(ValueError, match="token must be >= 0, got -1"):
        ContextTable().add(int32([1]), -1, 0)
