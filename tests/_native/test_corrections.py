"""Corrections of costs: the native ones against their twin, over steps with swings and stalls."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec._native import corrections as native
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
