"""Expected tokens and walltime, against simulation, brute force and the paper's own figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ngramspec.theory import walltime

ALPHAS = np.linspace(0.1, 0.9, 9)
GAMMAS = np.arange(1, 11)
STEPS = 100_000
MANY_ERRORS = 5

COSTS = st.floats(1e-3, 2)


def _steps(acceptance, seed=0):
    """Accepted tokens of many steps, each position its own coin."""
    generator = np.random.default_rng(seed)
    hits = generator.random((STEPS, len(acceptance))) < np.asarray(acceptance)
    return np.cumprod(hits, axis=1).sum(axis=1)


def test_figures_2_and_4_are_the_sums_that_they_stand_for():
    table = walltime.expected_tokens(ALPHAS[:, None], GAMMAS)
    assert table.shape == (9, 10)
    for i, alpha in enumerate(ALPHAS):
        for j, gamma in enumerate(GAMMAS):
            tokens = sum(alpha**power for power in range(gamma + 1))  # P(a token i is generated)
            assert table[i, j] == pytest.approx(tokens)
            assert walltime.improvement(alpha, gamma) == pytest.approx(tokens)


@given(st.floats(0, 0.99), COSTS)
def test_no_gamma_is_better_than_the_optimal_one(alpha, c):  # figure 3
    best = int(walltime.optimal_gamma(alpha, c))
    top = walltime.improvement(alpha, best, c)
    others = walltime.improvement(alpha, [*range(2 * best + 50), 1000, 10_000], c)
    assert (others <= top + 1e-12).all()


@given(st.floats(0, 1), COSTS)
def test_corollary_3_9(alpha, c):
    best = int(walltime.optimal_gamma(alpha, c, max_gamma=500))
    least = walltime.least_improvement(alpha, c)
    assert least == pytest.approx(walltime.improvement(alpha, 1, c))
    if alpha > c:
        assert best >= 1
        assert walltime.improvement(alpha, best, c) >= least - 1e-12 > 1 - 1e-12
    else:
        assert best == 0
        assert (walltime.improvement(alpha, np.arange(50), c) <= 1 + 1e-12).all()


def test_limits():
    assert walltime.expected_tokens([0, 1, 1 - 1e-14], 7) == pytest.approx([1, 8, 8])
    assert walltime.expected_tokens([0.5, 0.9], np.inf) == pytest.approx([2, 10])
    assert walltime.improvement(0.5, np.inf) == pytest.approx(2)
    assert walltime.optimal_gamma([0, 0.05, 1], [0, 0.05, 0.5], max_gamma=9).tolist() == [0, 0, 9]


@given(st.floats(0, 0.99), st.integers(1, 40), COSTS)
@example(0.99, 1, 2.0)  # where drafting never pays
def test_an_oracle_is_never_slower(alpha, gamma, c):
    assert walltime.oracle_improvement(alpha, c) >= walltime.improvement(alpha, gamma, c) - 1e-9


def test_an_oracle_is_what_steps_of_just_the_accepted_length_give_and_gains_60_percent():
    alpha, c = 0.8, 0.05
    accepted = _steps([alpha] * 200).astype(float)
    found = (accepted + 1).sum() / (1 + c * accepted).sum()
    assert found == pytest.approx(walltime.oracle_improvement(alpha, c), rel=0.02)
    alphas = np.linspace(0, 0.999, 1000)  # section 3.5
    for c in (0.01, 0.02, 0.05):
        best = walltime.improvement(alphas, walltime.optimal_gamma(alphas, c), c)
        assert 1.5 < (walltime.oracle_improvement(alphas, c) / best).max() < 1.6


@pytest.mark.parametrize("acceptance", [[0.9, 0.5, 0.2], [0.2, 0.9], []])
def test_acceptance_by_position_is_what_such_steps_give(acceptance):
    tokens = walltime.improvement_at(acceptance, np.ones(len(acceptance) + 2))
    assert len(tokens) == len(acceptance) + 1
    for length in range(len(acceptance) + 1):
        generated = _steps(acceptance[:length]) + 1
        error = generated.std() / np.sqrt(STEPS)
        assert abs(generated.mean() - tokens[length]) <= MANY_ERRORS * error


@given(st.floats(0, 1), st.integers(0, 30), COSTS)
def test_one_alpha_and_a_flat_cost_are_the_paper(alpha, gamma, c):
    flat = np.ones(gamma + 2)
    found = walltime.improvement_at([alpha] * gamma, flat, c)
    assert found == pytest.approx(walltime.improvement(alpha, np.arange(gamma + 1), c))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: walltime.expected_tokens(1.2, 3), r"alpha must be in 0..1, got 1.2"),
        (lambda: walltime.expected_tokens(0.5, -1), "gamma must be a whole number >= 0, got -1"),
        (lambda: walltime.expected_tokens(0.5, 1.5), "got 1.5"),
        (lambda: walltime.improvement(0.5, 1, -0.1), "c must be in 0..inf, got -0.1"),
        (lambda: walltime.optimal_gamma(0.5, 0), "max_gamma must be given"),
        (lambda: walltime.improvement_at([0.5], [0, 1]), r"n \+ 2,\), got \(1,\) and \(2,\)"),
        (lambda: walltime.improvement_at([0.5], [0, 1, -1]), "cost must be in 0..inf, got -1"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
