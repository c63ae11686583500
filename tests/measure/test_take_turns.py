"""Calls in turn: their order, what is not counted, and figures of them, by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from ngramspec.measure.bench import Measured, MeasuredCall, summarize
from ngramspec.measure.calls import PLAIN, first_difference, take_turns


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


def call(way, seconds, new=11, widths=None, emitted=10, prompt="p", **changes):
    fields = {"task": "t", "length": None, "prompt": prompt, "prompt_tokens": 5, "way": way}
    fields |= {"repeat": 0, "seconds": seconds, "new_tokens": new, "first_difference": None}
    fields |= {"peak": 100, "widths": widths or {}, "emitted": emitted, "stats": None}
    return MeasuredCall(**(fields | changes))


def test_figures_by_hand():
    """Plain: 10 steps of 1 s after a prefill of 1 s. Ours: 4 steps, in which 10 are emitted."""
    measured = Measured(prefills={("t", None, "p"): [1.0]})
    measured.costs["t", None] = (7, {1: 0.5, 2: 0.6, 4: 0.75})
    measured.calls = [call(PLAIN, 11.0, widths={1: 10})] * 3
    measured.calls += [call("ours", s, widths={4: 2, 1: 2}) for s in (4.0, 6.0, 100.0)]
    plain, ours = summarize(measured)
    assert plain["ratio"] == plain["limit_share"] == plain["tokens_per_call"] == 1.0
    assert ours["tokens_per_second"] == pytest.approx(11 / 6)
    assert ours["ratio"] == ours["ratio_worst"] == pytest.approx(11 / 6)
    assert ours["decode_ratio"] == pytest.approx(10 / 5)
    assert ours["tokens_per_call"] == 2.5
    assert ours["mean_cost"] == pytest.approx(1.25)
    assert ours["limit_share"] == pytest.approx(2 / (2.5 / 1.25))
    assert ours["same"] == ours["prompts"] == 1
    measured.static = ["ours"]
    assert summarize(measured)[1]["limit_share"] is None


def test_ratios_are_of_the_same_round():
    """A machine twice as slow in one of three rounds, for both."""
    measured = Measured(prefills={("t", None, "p"): [1.0]})
    for repeat, slow in enumerate((1.0, 2.0, 1.0)):
        measured.calls.append(
            call(PLAIN, 10.0 * slow + 1, repeat=repeat, emitted=10, widths={1: 10})
        )
        ours = call("ours", 8.0 * slow + 1, repeat=repeat, emitted=10, widths={1: 10})
        measured.calls.append(replace(ours, seconds=99.0) if repeat == 2 else ours)
    row = summarize(measured)[1]
    assert row["ratio"] == pytest.approx(11 / 9)
    assert row["decode_ratio"] == pytest.approx(10 / 8)


def test_figures_of_several_prompts():
    measured = Measured(prefills={("t", None, name): [0.0] for name in "abc"})
    for name, seconds in (("a", 5.0), ("b", 2.5), ("c", 20.0)):
        measured.calls.append(call(PLAIN, 10.0, prompt=name))
        measured.calls.append(call("ours", seconds, prompt=name, peak=None))
    measured.calls.append(call("ours", 20.0, prompt="c", peak=None, first_difference=4))
    row = summarize(measured)[1]
    assert row["ratio"] == pytest.approx((2 * 4 * 0.5) ** (1 / 3))
    assert (row["ratio_median"], row["ratio_worst"]) == (2.0, 0.5)
    assert row["first_differences"] == {"c": 4}
    assert (row["same"], row["peak_bytes"], row["limit_share"]) == (2, None, None)


def test_the_first_difference():
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1], [1, 3]) == 1
