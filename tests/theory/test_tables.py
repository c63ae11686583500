"""The published tables come out of the closed forms; where they do not, that is an erratum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from ngramspec.theory.acceptance import greedy_acceptance
from ngramspec.theory.walltime import (
    expected_accepted,
    expected_tokens,
    improvement,
    optimal_gamma,
)


class Tradeoff(NamedTuple):
    """A row of Table 1, with c = c_hat = 0: operations and speed relative to the baseline's."""

    alpha: float
    gamma: int
    operations: float
    speed: float


class Walltime(NamedTuple):
    """A row of Table 4: T5-XXL with a smaller T5, at temperature 0 or 1; all figures rounded."""

    task: str
    draft: str
    temperature: int
    gamma: int
    alpha: float
    c: float
    expected: float
    measured: float


TABLE_1 = (
    Tradeoff(0.6, 2, 1.53, 1.96),
    Tradeoff(0.7, 3, 1.58, 2.53),
    Tradeoff(0.8, 2, 1.23, 2.44),
    Tradeoff(0.8, 5, 1.63, 3.69),
    Tradeoff(0.9, 2, 1.11, 2.71),
    Tradeoff(0.9, 10, 1.60, 6.86),
)

TABLE_4 = (
    Walltime("EnDe", "T5-small", 0, 7, 0.75, 0.02, 3.2, 3.4),
    Walltime("EnDe", "T5-base", 0, 7, 0.80, 0.04, 3.3, 2.8),
    Walltime("EnDe", "T5-large", 0, 7, 0.82, 0.11, 2.5, 1.7),
    Walltime("EnDe", "T5-small", 1, 7, 0.62, 0.02, 2.3, 2.6),
    Walltime("EnDe", "T5-base", 1, 5, 0.68, 0.04, 2.4, 2.4),
    Walltime("EnDe", "T5-large", 1, 3, 0.71, 0.11, 2.0, 1.4),
    Walltime("CNNDM", "T5-small", 0, 5, 0.65, 0.02, 2.4, 3.1),
    Walltime("CNNDM", "T5-base", 0, 5, 0.73, 0.04, 2.6, 3.0),
    Walltime("CNNDM", "T5-large", 0, 3, 0.74, 0.11, 2.0, 2.2),
    Walltime("CNNDM", "T5-small", 1, 5, 0.53, 0.02, 1.9, 2.3),
    Walltime("CNNDM", "T5-base", 1, 3, 0.55, 0.04, 1.8, 2.2),
    Walltime("CNNDM", "T5-large", 1, 3, 0.56, 0.11, 1.6, 1.7),
)

# Alpha of T5-small on the EnDe task with standard sampling, at lenience 1, 0.5, 0.3 and 0.1.
TABLE_5 = (0.62, 0.71, 0.76, 0.84)

# Speeds in appendix A.5 for T5-small with c = 0.015: sampled, from Table 5's alpha; and greedy,
# from the separate alpha below with gamma = 8.
LENIENCE_C = 0.015
LENIENCE_SPEED = (2.5, 3.1, 3.6, 5.0)
GREEDY_LENIENCE_ALPHA = (0.75, 0.75, 0.80, 0.87)
GREEDY_LENIENCE_GAMMA = 8
GREEDY_LENIENCE_SPEED = (3.3, 3.3, 3.9, 4.9)


@pytest.mark.parametrize("row", TABLE_1, ids=str)
def test_table_1(row):
    assert improvement(row.alpha, row.gamma) == pytest.approx(row.speed, abs=0.005)
    operations = (row.gamma + 1) / expected_tokens(row.alpha, row.gamma)  # Theorem 3.11
    assert operations == pytest.approx(row.operations, abs=0.005)


@pytest.mark.parametrize("row", TABLE_4, ids=str)
def test_table_4_predictions(row):
    half = 0.005  # alpha and c are printed with two digits
    low = improvement(row.alpha - half, row.gamma, row.c + half)
    high = improvement(row.alpha + half, row.gamma, row.c - half)
    assert low - 0.05 <= row.expected <= high + 0.05
    assert improvement(row.alpha, row.gamma, row.c) == pytest.approx(row.expected, abs=0.07)


def test_table_4_predicted_against_measured():
    ratios = np.array([row.measured / row.expected for row in TABLE_4])
    assert np.median(ratios) == pytest.approx(1.06, abs=0.05)
    assert (ratios.min(), ratios.max()) == (pytest.approx(0.68), pytest.approx(1.292, abs=1e-3))
    large = [row.measured / row.expected for row in TABLE_4 if row.c > 0.1]
    assert np.mean(large) < 1  # the drafts that cost most do worst against the prediction


def test_a_bigram_gives_a_quarter():
    assert improvement(0.2, 3) == pytest.approx(1.25, abs=0.005)  # section 3.6


def test_greedy_lenience_speeds():
    found = improvement(GREEDY_LENIENCE_ALPHA, GREEDY_LENIENCE_GAMMA, LENIENCE_C)
    assert found == pytest.approx(np.array(GREEDY_LENIENCE_SPEED), abs=0.05)


def test_erratum_no_gamma_gives_the_sampled_lenience_speeds():
    alphas, c = np.array(TABLE_5), LENIENCE_C
    best = improvement(alphas, optimal_gamma(alphas, c), c)
    assert best == pytest.approx([2.33, 2.94, 3.45, 4.79], abs=0.005)
    kind = improvement(alphas + 0.005, optimal_gamma(alphas + 0.005, c - 5e-4), c - 5e-4)
    assert (kind < np.array(LENIENCE_SPEED) - 0.05).all()  # whatever was rounded


def test_erratum_akunus_expected_accepted_tokens():
    assert expected_accepted([0.5, 0.7, 0.9], 4) == pytest.approx([0.94, 1.77, 3.10], abs=0.005)
    printed = {0.7: 2.05, 0.9: 3.28}
    for alpha, value in printed.items():
        count = np.arange(5)
        to_d = (count * alpha**count * (1 - alpha)).sum() + 4 * alpha**4  # as printed: k = D twice
        assert to_d != pytest.approx(value, abs=0.005)
        assert to_d > expected_accepted(alpha, 4) + 0.2
        assert value > expected_accepted(alpha, 4) + 0.15


def test_erratum_a5_printed_inequality_would_accept_everything():
    p = np.array([0.6, 0.3, 0.1])
    rows, tokens = np.broadcast_to(p, (3, 3)), np.arange(3)
    assert (p <= 1.0 * p.max()).all()  # as printed, with l = 1: no token is ever rejected
    assert greedy_acceptance(rows, tokens, 1.0).tolist() == [1, 0, 0]  # argmax sampling


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
