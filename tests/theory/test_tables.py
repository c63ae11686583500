"""The published tables come out of the closed forms; where they do not, that is an erratum."""

from __future__ import annotations

import numpy as np
import pytest

from ngramspec.theory import tables
from ngramspec.theory.acceptance import greedy_acceptance
from ngramspec.theory.walltime import (
    expected_accepted,
    expected_tokens,
    improvement,
    optimal_gamma,
)


@pytest.mark.parametrize("row", tables.TABLE_1, ids=str)
def test_table_1(row):
    assert row.computed() == pytest.approx((row.operations, row.speed), abs=0.005)


@pytest.mark.parametrize("row", tables.TABLE_4, ids=str)
def test_table_4_predictions(row):
    low, high = row.computed_range()  # alpha and c are printed with two digits
    assert low - 0.05 <= row.expected <= high + 0.05
    assert row.computed() == pytest.approx(row.expected, abs=0.07)


def test_table_4_predicted_against_measured():
    ratios = np.array([row.measured / row.expected for row in tables.TABLE_4])
    assert np.median(ratios) == pytest.approx(1.06, abs=0.05)
    assert (ratios.min(), ratios.max()) == (pytest.approx(0.68), pytest.approx(1.292, abs=1e-3))
    large = [row.measured / row.expected for row in tables.TABLE_4 if row.c > 0.1]
    assert np.mean(large) < 1  # the drafts that cost most do worst against the prediction


def test_a_bigram_gives_a_quarter():
    assert improvement(0.2, 3) == pytest.approx(1.25, abs=0.005)  # section 3.6


def test_greedy_lenience_speeds():
    found = improvement(
        tables.GREEDY_LENIENCE_ALPHA, tables.GREEDY_LENIENCE_GAMMA, tables.LENIENCE_C
    )
    assert found == pytest.approx(np.array(tables.GREEDY_LENIENCE_SPEED), abs=0.05)


def test_erratum_no_gamma_gives_the_sampled_lenience_speeds():
    alphas, c = np.array(tables.TABLE_5["T5-small"]), tables.LENIENCE_C
    best = improvement(alphas, optimal_gamma(alphas, c), c)
    assert best == pytest.approx([2.33, 2.94, 3.45, 4.79], abs=0.005)
    kind = improvement(alphas + 0.005, optimal_gamma(alphas + 0.005, c - 5e-4), c - 5e-4)
    assert (kind < np.array(tables.LENIENCE_SPEED) - 0.05).all()  # whatever was rounded


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
