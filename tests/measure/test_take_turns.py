"""Calls in turn: their order, what is not counted, and ratios of one repeat."""

from __future__ import annotations

from functools import partial

import pytest

from ngramspec.measure.calls import PLAIN, take_turns


def noted(order, name):
    order.append(name)
    return len(order)


@pytest.mark.parametrize(
    ("first", "rounds"),
    [(None, ["abc", "abc", "abc"]), (0, ["cab", "abc", "bca"]), (4, ["abc", "bca", "cab"])],
)
def test_all_are_called_once_in_each_repeat(first, rounds):
    order = []
    calls = {name: partial(noted, order, name) for name in "abc"}
    found = take_turns(calls, 2, warm_up=1, first=first)
    assert "".join(order) == "".join(rounds)
    for name in "abc":  # the first round is not counted
        at = [3 * repeat + each.index(name) + 1 for repeat, each in enumerate(rounds)]
        assert found.results[name] == at[1:]
        assert found.last(name) == at[-1]
        assert len(found.seconds[name]) == 2


def test_speedups_are_of_the_same_repeat(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ngramspec.measure.calls.perf_counter", lambda: now[0])
    seconds = {PLAIN: iter([1.0, 10.0, 100.0]), "ours": iter([0.5, 2.0, 100.0])}

    def call(name):
        now[0] += next(seconds[name])

    found = take_turns({name: partial(call, name) for name in seconds}, 3, warm_up=0)
    assert found.speedups("ours") == [2.0, 5.0, 1.0]
    assert found.speedup("ours") == 2.0
    assert found.speedup(PLAIN) == 1.0
    assert found.median("ours") == 2.0
