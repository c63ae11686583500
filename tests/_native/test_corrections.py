"""Corrections of costs: the native ones against their twin, over steps with swings and stalls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_strategies import QUICK

from ngramspec._native import corrections as native
from ngramspec._native.rows import best_prefix_lengths, generous_cost, may_pay
from tests import twins as reference
from tests.twins import corrections as twin


def covariance(n, random):
    root = random.standard_normal((n, n)) / n
    return root @ root.T + 0.01 * np.eye(n)


@pytest.mark.parametrize("n", [1, 4, 16, 62])
@pytest.mark.parametrize("revived", [0.0, 0.01, 0.1])
def test_native_and_twin_learn_the_same(n, revived):
    """Two generations share the corrections, and one begins anew now and then."""
    random = np.random.default_rng(n)
    before = covariance(n, random)
    fade = 1 / 256
    both = [each.Corrections(before, fade, revived) for each in (native, twin)]
    compared = [[each.Comparison() for _ in range(2)] for each in (native, twin)]
    wanted = random.standard_normal(n) / 4
    speed = 0.0
    for step in range(300):
        which = random.choice(n, size=min(n, int(random.integers(0, 5))), replace=False)
        features = [(int(at), float(random.standard_normal())) for at in which]
        if random.random() < 0.1:
            speed = float(random.standard_normal()) / 2
        residual = speed + 0.05 * random.standard_normal()
        residual += sum(value * wanted[at] for at, value in features)
        generation = step // 7 % 2
        if step % 50 == 49:
            for each, comparisons in zip((native, twin), compared, strict=True):
                comparisons[generation] = each.Comparison()
        likely = [
            model.learn(comparisons[generation], features, residual)
            for model, comparisons in zip(both, compared, strict=True)
        ]
        assert likely[0] == pytest.approx(likely[1], rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(both[0].mean, both[1].mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(both[0].covariance, both[1].covariance, rtol=1e-6, atol=1e-9)
    assert np.abs(both[0].mean).max() > 0


def test_what_cannot_be_learned_from_is_refused():
    with pytest.raises(ValueError, match="2 x 3"):
        native.Corrections(np.zeros((2, 3)), 0.1, 0.1)
    model, before = native.Corrections(np.eye(3), 0.1, 0.1), native.Comparison()
    for at in (-1, 3):
        with pytest.raises(IndexError, match=rf"feature must be in 0\.\.2, got {at}"):
            model.learn(before, [(0, 1.0), (at, 1.0)], 0.5)
    with pytest.raises(TypeError):
        model.learn(None, [], 0.5)
    other = native.Comparison()
    native.Corrections(np.eye(2), 0.1, 0.1).learn(other, [], 0.5)
    with pytest.raises(ValueError, match="before must have 3 features, got 2"):
        model.learn(other, [], 0.5)
    assert not model.mean.any()
    assert np.array_equal(model.covariance, np.eye(3))


def test_its_prior_is_not_the_caller_s_array():
    prior = np.eye(2)
    model, before = native.Corrections(prior, 0.5, 0.1), native.Comparison()
    prior[:] = 7.0
    model.learn(before, [], 0.0)
    np.testing.assert_allclose(model.covariance, np.eye(2))


# Eighths and quarters: all sums are exact, so that equal values are equal for both.
CONFIDENCE = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=5)
BATCHES = st.lists(CONFIDENCE, max_size=5)
CURVES = st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]), max_size=20).map(
    lambda steps: np.cumsum([1.0, *steps]).astype(np.float32)
)


def arrays(batch):
    return [np.array(each, np.float32) for each in batch]


@QUICK
@given(
    batch=BATCHES,
    curve=CURVES,
    lasting=st.sampled_from([0.5, 1.0]),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=5, max_size=5) | st.none(),
    rate=st.sampled_from([1.0, 1.5, 4.0, np.nan]),
)
def test_it_does_what_its_twin_does(batch, curve, lasting, weights, rate):
    chains = arrays(batch)
    weights = weights and weights[: len(batch)]
    for each, are_chains in (chains, True), ([np.sort(x)[::-1].copy() for x in chains], False):
        ours = best_prefix_lengths(each, curve, are_chains, lasting, weights, rate)
        theirs = reference.best_prefix_lengths(each, curve, are_chains, lasting, weights, rate)
        assert ours == theirs


@QUICK
@given(
    batch=st.lists(st.lists(st.sampled_from([0.25, 0.5, 1.0]), max_size=3), max_size=3),
    curve=CURVES,
    rate=st.sampled_from([None, 1.0, 1.5, 4.0]),
)
def test_no_other_lengths_are_worth_more(batch, curve, rate):
    def value(lengths):
        expected = len(batch) + sum(
            float(np.prod(each[: n + 1]))
            for each, length in zip(batch, lengths, strict=True)
            for n in range(length)
        )
        cost = curve[sum(lengths)]
        return expected / cost if rate is None else expected - rate * len(batch) * cost

    every = itertools.product(*(range(len(each) + 1) for each in batch))
    best = max(value(lengths) for lengths in every if sum(lengths) < len(curve))
    given = {} if rate is None else {"rate": rate}
    assert value(best_prefix_lengths(arrays(batch), curve, **given)) == pytest.approx(best)


def test_wrong_input_is_named():
    good, curve = np.ones(2, np.float32), np.ones(5, np.float32)
    for bad in ([0.5], np.ones(2), np.ones((1, 2), np.float32), np.ones(4, np.float32)[::2], None):
        with pytest.raises(TypeError, match="confidences must be"):
            best_prefix_lengths([good, bad], curve)
    for call in (
        lambda: best_prefix_lengths([good], curve[:0]),
        lambda: generous_cost(curve[:0], 1, 1),
    ):
        with pytest.raises(ValueError, match="curve must have one entry or more"):
            call()
    with pytest.raises(ValueError, match="weights must be as many as rows, 1, got 2"):
        best_prefix_lengths([good], curve, True, 1.0, [1.0, 1.0])
    assert best_prefix_lengths([], curve) == []
    assert best_prefix_lengths([good], curve) == [2]


@QUICK
@given(curve=CURVES, rows=st.integers(1, 9), k=st.integers(1, 6), noise=st.integers(0, 99))
def test_a_row_s_cost_is_its_twin_s(curve, rows, k, noise):
    for rate in (1.0, 1.5, 2.0):
        assert may_pay(curve, rows, k, rate) == reference.may_pay(curve, rows, k, rate)
    uneven = curve * np.random.default_rng(noise).uniform(0.5, 2, len(curve)).astype(np.float32)
    for each in (curve, uneven):
        ours = generous_cost(each, rows, k)
        assert ours.dtype == np.float32
        assert ours.tolist() == reference.generous_cost(each, rows, k).tolist()
