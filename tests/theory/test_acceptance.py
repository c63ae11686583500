"""Acceptance from two distributions, against the algorithms themselves run many times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ngramspec.theory import acceptance as closed

VOCAB = 6
RUNS = 200_000
MANY_ERRORS = 5  # standard errors: a right implementation fails less than once in a million runs


def _distribution(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


DISTRIBUTIONS = (
    arrays(np.float64, VOCAB, elements=st.sampled_from([0.0, 0.01, 0.5, 1.0, 3.0]))
    .filter(lambda weights: weights.sum() > 0)
    .map(_distribution)
)


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(VOCAB, 0.6), shape)


def _draws(generator: np.random.Generator, p: np.ndarray, size: int) -> np.ndarray:
    return generator.choice(len(p), size=size, p=p)


def _algorithm_1(p, q, lenience, seed=0):
    """Accepted, and the tokens: one drafted position, RUNS times, step by step as printed."""
    generator = np.random.default_rng(seed)
    x = _draws(generator, q, RUNS)
    accepted = generator.random(RUNS) < p[x] / (lenience * q[x])
    rest = np.maximum(p / lenience - q, 0)
    again = _draws(generator, rest / rest.sum(), RUNS) if rest.sum() > 0 else x
    return accepted, np.where(accepted, x, again)


def _error(share):
    return np.sqrt(np.maximum(share * (1 - share), 1e-3) / RUNS)


@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_divergence_is_symmetric_in_0_to_1_and_as_defined(p, q):
    value, middle = closed.divergence(p, q), (p + q) / 2
    assert 0 <= value <= 1 + 1e-12
    assert value == closed.divergence(q, p)
    assert (value < 1e-12) == np.allclose(p, q, atol=1e-12, rtol=0)
    assert (value > 1 - 1e-12) == (not (p * q).any())
    assert value == pytest.approx(np.abs(p - middle).sum())  # Definition 3.2
    assert value == pytest.approx(1 - closed.acceptance(p, q))  # Theorem 3.5


def test_a_one_hot_draft_is_accepted_with_its_own_probability():
    p = _random(1)
    assert closed.acceptance(np.broadcast_to(p, (VOCAB, VOCAB)), np.eye(VOCAB)) == pytest.approx(p)


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.1])
def test_algorithm_1_accepts_and_says_what_the_formulas_say(lenience):
    p, q = _random(2, 2)
    accepted, tokens = _algorithm_1(p, q, lenience)
    share = closed.acceptance(p, q, lenience)
    assert abs(accepted.mean() - share) < MANY_ERRORS * _error(share)
    said = closed.output(p, q, lenience)
    counts = np.bincount(tokens, minlength=VOCAB) / RUNS
    assert (np.abs(counts - said) < MANY_ERRORS * _error(said)).all()
    if lenience == 1:
        assert said == pytest.approx(p)  # A.1
    other = (p * q / np.maximum(p, lenience * q)).sum()  # A.5, the form before the last
    assert share == pytest.approx(other)


@given(DISTRIBUTIONS, DISTRIBUTIONS)
def test_less_lenience_accepts_less_and_changes_less_within_its_bound(p, q):
    for lenience in (1.0, 0.5, 0.3, 0.1):
        said = closed.output(p, q, lenience)
        assert said.sum() == pytest.approx(1)
        assert (said <= p / lenience + 1e-9).all()  # A.5
    rates = [float(closed.acceptance(p, q, each)) for each in (0.1, 0.3, 0.5, 1.0)]
    assert rates == sorted(rates, reverse=True)
    moved = [float(closed.divergence(p, closed.output(p, q, each))) for each in (0.3, 0.5, 1.0)]
    assert np.all(np.diff(moved) < 1e-9)
    assert moved[-1] == pytest.approx(0, abs=1e-12)


def test_batches_are_done_row_by_row():
    p, q = _random(7, 2, 3, 5)
    rows = [[closed.acceptance(p[i, j], q[i, j], 0.5) for j in range(5)] for i in range(3)]
    assert closed.acceptance(p, q, 0.5) == pytest.approx(np.array(rows))
    assert closed.output(p, q, 0.5).shape == (3, 5, VOCAB)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: closed.acceptance([0.5, 0.4], [0.5, 0.5]), "p must sum to 1 .* got 0.9"),
        (lambda: closed.acceptance([0.5, 0.5], [1.5, -0.5]), "q must be in 0..inf, got -0.5"),
        (lambda: closed.divergence(1.0, [1.0]), r"p must have shape \(..., vocab\)"),
        (lambda: closed.acceptance([1.0], [1.0], 0.0), "lenience must be > 0, got 0"),
        (lambda: closed.acceptance([1.0], [1.0], 1.5), "lenience must be in 0..1, got 1.5"),
        (lambda: closed.acceptance([np.nan, 1.0], [1.0, 0.0]), "got nan"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
