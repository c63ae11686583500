"""Arithmetic operations and memory accesses (Leviathan et al. 2023, section 3.4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ngramspec.theory.arrays import Float64, product, real, whole
from ngramspec.theory.walltime import expected_tokens


def operations_factor(alpha: ArrayLike, gamma: ArrayLike, c_hat: ArrayLike = 0.0) -> Float64:
    """The expected increase in the total of arithmetic operations (Theorem 3.11).

    Args:
        alpha, gamma: as in ``expected_tokens``.
        c_hat: >= 0, operations of drafting one token / of one token of the target.

    Returns:
        float64, (gamma c_hat + gamma + 1) / Equation 1; 1 if alpha = 1 and c_hat = 0.

    Example:
        >>> round(float(operations_factor(0.6, 2)), 2)
        1.53
    """
    length, ratio = whole("gamma", gamma), real("c_hat", c_hat)
    return np.asarray((product(length, ratio) + length + 1) / expected_tokens(alpha, gamma))


def memory_factor(alpha: ArrayLike, gamma: ArrayLike, draft_ratio: ArrayLike = 0.0) -> Float64:
    """The expected factor on reads of the weights and the KV cache (section 3.4, last paragraph).

    A step reads the target's weights and cache once, so Equation 1 divides these reads.

    Args:
        alpha, gamma: as in ``expected_tokens``.
        draft_ratio: >= 0, bytes read to draft one token / to run the target once.

    Returns:
        float64, (gamma draft_ratio + 1) / Equation 1; below 1, memory traffic is saved.
    """
    length, ratio = whole("gamma", gamma), real("draft_ratio", draft_ratio)
    return np.asarray((product(length, ratio) + 1) / expected_tokens(alpha, gamma))


def wasted_share(alpha: ArrayLike, gamma: ArrayLike) -> Float64:
    """The share of the target's computed positions that yield no token.

    Returns:
        float64 in 0..1: 1 - Equation 1 / (gamma + 1).
    """
    return np.asarray(1 - expected_tokens(alpha, gamma) / (whole("gamma", gamma) + 1))
