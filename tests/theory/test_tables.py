"""The published tables come out of the closed forms; where they do not, that is an erratum."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec.theory.walltime import expected_tokens, improvement, optimal_gamma

# Table 1 with c = c_hat = 0: alpha, gamma, operations and speed relative to the baseline's.
TABLE_1 = (
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
)
# Table 4, rounded figures of T5-XXL with T5-small, -base and -large at temperatures 0 and 1, of
# EnDe and then of CNNDM: gamma, alpha, c, expected and measured speed.
TABLE_4 = (
    (7, 0.75, 0.02, 3.2, 3.4),
    (7, 0.80, 0.04, 3.3, 2.8),
    (7, 0.82, 0.11, 2.5, 1.7),
    (7, 0.62, 0.02, 2.3, 2.6),
    (5, 0.68, 0.04, 2.4, 2.4),
    (3, 0.71, 0.11, 2.0, 1.4),
    (5, 0.65, 0.02, 2.4, 3.1),
    (5, 0.73, 0.04, 2.6, 3.0),
    (3, 0.74, 0.11, 2.0, 2.2),
    (5, 0.53, 0.02, 1.9, 2.3),
    (3, 0.55, 0.04, 1.8, 2.2),
    (3, 0.56, 0.11, 1.6, 1.7),
)


@pytest.mark.parametrize(("alpha", "gamma", "operations", "speed"), TABLE_1)
def test_table_1(alpha, gamma, operations, speed):
    assert improvement(alpha, gamma) == pytest.approx(speed, abs=0.005)
    found = (gamma + 1) / expected_tokens(alpha, gamma)  # Theorem 3.11
    assert found == pytest.approx(operations, abs=0.005)


@pytest.mark.parametrize(("gamma", "alpha", "c", "expected", "measured"), TABLE_4)
def test_table_4_predictions(gamma, alpha, c, expected, measured):
    half = 0.005  # alpha and c are printed with two digits
    low = improvement(alpha - half, gamma, c + half)
    high = improvement(alpha + half, gamma, c - half)
    assert low - 0.05 <= expected <= high + 0.05
    assert improvement(alpha, gamma, c) == pytest.approx(expected, abs=0.07)
    assert 0.67 < measured / expected < 1.3


def test_lenience_speeds_of_appendix_a_5_and_a_bigram_s():
    """Of T5-small: greedy ones from an alpha of their own; no gamma gives the sampled ones."""
    found = improvement((0.75, 0.75, 0.80, 0.87), 8, 0.015)
    assert found == pytest.approx(np.array((3.3, 3.3, 3.9, 4.9)), abs=0.05)
    alphas, c = np.array((0.62, 0.71, 0.76, 0.84)), 0.015  # Table 5, lenience 1, 0.5, 0.3, 0.1
    best = improvement(alphas, optimal_gamma(alphas, c), c)
    assert best == pytest.approx([2.33, 2.94, 3.45, 4.79], abs=0.005)
    kind = improvement(alphas + 0.005, optimal_gamma(alphas + 0.005, c - 5e-4), c - 5e-4)
    assert (kind < np.array((2.5, 3.1, 3.6, 5.0)) - 0.05).all()  # whatever was rounded
    assert improvement(0.2, 3) == pytest.approx(1.25, abs=0.005)  # section 3.6, of a bigram


def test_erratum_akunus_expected_accepted_tokens():
    right = expected_tokens([0.5, 0.7, 0.9], 4) - 1
    assert right == pytest.approx([0.94, 1.77, 3.10], abs=0.005)
    printed = {0.7: 2.05, 0.9: 3.28}
    for (alpha, value), accepted in zip(printed.items(), right[1:], strict=True):
        count = np.arange(5)
        to_d = (count * alpha**count * (1 - alpha)).sum() + 4 * alpha**4  # as printed: k = D twice
        assert to_d != pytest.approx(value, abs=0.005)
        assert to_d > accepted + 0.2
        assert value > accepted + 0.15


@pytest.mark.parametrize(("beta", "length"), [(0.8, 10), (0.3, 2)])
def test_erratum_stratos_sum_of_the_capped_geometric(beta, length):
    t = np.arange(1, length + 2)
    printed = ((1 - beta) * beta ** (t - 1) * t).sum()  # footnote 1
    right = printed + (length + 1) * beta ** (length + 1)
    assert right == pytest.approx(expected_tokens(beta, length))
    assert expected_tokens(0.8, 10) > 4  # section 1.1.1's example
    inner = np.arange(1, length + 1)
    capped = ((1 - beta) * beta ** (inner - 1) * inner).sum() + (length + 1) * beta**length
    assert capped == pytest.approx(expected_tokens(beta, length))
