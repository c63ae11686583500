"""The draft length with the most expected tokens per cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.draft_length.optimal import worthwhile_nodes


@given(
    st.lists(st.floats(0.01, 0.99), max_size=12),
    st.lists(st.floats(1, 3), min_size=14, max_size=14),
)
def test_the_worthwhile_length_is_the_best_of_all(confidence, cost):
    def value(n):
        reach = np.cumprod(np.array(confidence[:n], np.float64))
        return (1 + reach.sum()) / cost[n + 1]

    values = [value(n) for n in range(len(confidence) + 1)]
    reach = np.cumprod(np.array(confidence, np.float64))
    nodes = worthwhile_nodes(reach, np.array(cost, np.float32))
    assert values[nodes] == pytest.approx(max(values), rel=1e-5)


@pytest.mark.parametrize(("alpha", "c", "gamma"), [(0.8, 0.1, 6), (0.5, 0.05, 3), (0.9, 0.02, 19)])
def test_the_worthwhile_length_is_that_of_theorem_3_8(alpha, c, gamma):
    """Equal acceptance, drafting for c a token: the gamma of the closed form's maximum."""
    n = np.arange(40)
    factor = (1 - alpha ** (n + 1)) / ((1 - alpha) * (n * c + 1))
    assert factor.argmax() == gamma
    cost = np.concatenate(([0], 1 + c * np.arange(40))).astype(np.float32)
    assert worthwhile_nodes(np.cumprod(np.full(38, alpha)), cost) == gamma
