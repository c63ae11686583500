"""Expected tokens per step, and the speedup over the baseline.

Leviathan et al. 2023, sections 3.1, 3.3 and 3.5. alpha is the acceptance rate, gamma the number of
drafted tokens, c the cost of drafting one in forwards of the target. The paper assumes one alpha
for all positions and a forward that costs the same at any width. ``improvement_at`` takes
acceptance by position and the measured cost(n) instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ngramspec.draft import Float64, Int64
from ngramspec.theory import probability, real, whole


def expected_tokens(alpha: ArrayLike, gamma: ArrayLike) -> Float64:
    """E(generated tokens) of one step, (1 - alpha^(gamma + 1)) / (1 - alpha) (Equation 1).

    Args:
        alpha: in 0..1, any shape.
        gamma: whole, >= 0, broadcast with alpha; infinity gives 1 / (1 - alpha).

    Returns:
        float64 of the broadcast shape; gamma + 1 where alpha = 1.

    Example:
        >>> round(float(expected_tokens(0.8, 5)), 2)
        3.69
    """
    rate, length = np.broadcast_arrays(probability("alpha", alpha), whole("gamma", gamma))
    with np.errstate(divide="ignore", invalid="ignore"):
        power = -np.expm1((length + 1) * np.log(rate))  # 1 - alpha^(gamma + 1), exact near 1
        return np.asarray(np.where(rate < 1, power / (1 - rate), length + 1.0))


def improvement(alpha: ArrayLike, gamma: ArrayLike, c: ArrayLike = 0.0) -> Float64:
    """The expected improvement factor in walltime (Theorem 3.8).

    Args:
        alpha, gamma: as in ``expected_tokens``.
        c: >= 0, the cost of drafting one token in forwards of the target.

    Returns:
        float64, Equation 1 / (gamma c + 1); below 1, speculation is slower.

    Example:
        >>> round(float(improvement(0.75, 7, 0.02)), 1)
        3.2
    """
    length, cost = np.broadcast_arrays(whole("gamma", gamma), real("c", c))
    drafting = np.multiply(length, cost, where=cost > 0, out=np.zeros(cost.shape))  # inf * 0 = 0
    return np.asarray(expected_tokens(alpha, gamma) / (drafting + 1))


def least_improvement(alpha: ArrayLike, c: ArrayLike) -> Float64:
    """(1 + alpha) / (1 + c): the improvement at gamma = 1, a lower bound (Corollary 3.9).

    It is above 1 exactly if alpha > c. Otherwise no gamma gives an improvement.
    """
    return np.asarray((1 + probability("alpha", alpha)) / (1 + real("c", c)))


def optimal_gamma(alpha: ArrayLike, c: ArrayLike, max_gamma: int | None = None) -> Int64:
    """The gamma with the highest improvement (section 3.5, Figure 3), the smallest if equal.

    With S for Equation 1, another drafted token helps exactly if
    alpha^(gamma + 1) (1 + c gamma) > c S(gamma). The difference of the two sides decreases by
    alpha^(gamma + 1) (1 - alpha) (1 + c (gamma + 1)) per token. So the first gamma at which another
    token does not help is optimal. Bisection finds it. Equation 1 stays below 1 / (1 - alpha), and
    the best improvement is at least that of gamma = 1, which gives the upper end.

    Args:
        alpha: in 0..1.
        c: >= 0, broadcast with alpha.
        max_gamma: the limit; None: no limit, which requires c > 0 and alpha < 1.

    Returns:
        int64 of the broadcast shape.

    Raises:
        ValueError: there is no limit, and every further token helps.

    Example:
        >>> int(optimal_gamma(0.8, 0.05))
        8
    """
    rate, cost = np.broadcast_arrays(probability("alpha", alpha), real("c", c))
    with np.errstate(divide="ignore", invalid="ignore"):
        high = np.floor((1 / ((1 - rate) * least_improvement(rate, cost)) - 1) / cost)
    high = np.where(cost >= rate, 0.0, np.where((rate == 1) | (cost == 0), np.inf, high))
    if max_gamma is not None:
        high = np.minimum(high, whole("max_gamma", max_gamma))
    elif np.isinf(high).any():
        raise ValueError("max_gamma must be given where c is 0 or alpha is 1: every gamma helps")
    low = np.zeros_like(high)
    while (low < high).any():
        middle = np.floor((low + high) / 2)
        gain = rate ** (middle + 1) * (1 + cost * middle)
        helps = gain > cost * expected_tokens(rate, middle)
        low = np.where((low < high) & helps, middle + 1, low)
        high = np.where((low < high) & ~helps, middle, high)
    return np.asarray(low, np.int64)


def oracle_improvement(alpha: ArrayLike, c: ArrayLike = 0.0) -> Float64:
    """The improvement if each step drafted exactly the tokens that are accepted (section 3.5).

    A step emits 1 / (1 - alpha) tokens on average and drafts alpha / (1 - alpha) of them, so the
    factor is 1 / (1 - alpha + c alpha). Every step is still verified. With c >= 1 a drafted token
    costs more than it saves, and the oracle drafts none.

    Returns:
        float64, >= 1; infinity where alpha = 1 and c = 0.
    """
    rate, cost = probability("alpha", alpha), real("c", c)
    with np.errstate(divide="ignore"):
        return np.asarray(1 / (1 - rate + np.minimum(cost, 1.0) * rate))


def improvement_at(acceptance: ArrayLike, cost: ArrayLike, c: float = 0.0) -> Float64:
    """Theorem 3.8 with acceptance by position and the measured cost of wider forwards.

    Args:
        acceptance: (n,), P(position i accepted | those before it accepted).
        cost: (n + 2,) or longer, cost[k] of a forward of k positions, any unit; cost[0] is unused.
        c: >= 0, the cost of drafting one token in forwards of one position.

    Returns:
        float64 (n + 1,): the improvement with drafts of 0 to n tokens; 1 without a draft.

    Example:
        >>> improvement_at([0.5, 0.5], [0, 1.0, 1.2, 1.4]).tolist()
        [1.0, 1.25, 1.25]
    """
    rates, forward = probability("acceptance", acceptance), np.asarray(cost, np.float64)
    if rates.ndim != 1 or forward.ndim != 1 or len(forward) < len(rates) + 2:
        raise ValueError(
            f"acceptance must have shape (n,) and cost (n + 2,), got {rates.shape} and"
            f" {forward.shape}"
        )
    tokens = 1 + np.cumsum(np.concatenate(([0.0], np.cumprod(rates))))
    spent = real("cost", forward[1 : len(tokens) + 1]) / forward[1]
    return np.asarray(tokens / (spent + float(real("c", c)) * np.arange(len(tokens))))
