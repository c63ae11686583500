"""The acceptance of a drafted token, from the target's distribution p and the draft's q.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 3.2 and
appendices A.2 and A.5; Stratos, "Speculative Decoding", section 2. Distributions are arrays of
shape (..., vocab); all axes before the last are batch axes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ngramspec.draft import Float64
from ngramspec.theory import distribution, probability


def divergence(p: ArrayLike, q: ArrayLike) -> Float64:
    """D_LK(p, q), the total variation distance (Definition 3.2, Lemma 3.3).

    It is half of the summed absolute difference: symmetric, 0 if p = q, and 1 if p and q have no
    token in common (Corollary 3.4).

    Returns:
        float64 (...), in 0..1.
    """
    first, second = distribution("p", p), distribution("q", q)
    return np.asarray(np.abs(first - second).sum(axis=-1) / 2)


def acceptance(p: ArrayLike, q: ArrayLike, lenience: float = 1.0) -> Float64:
    """beta: the probability that a token drawn from q is accepted (Theorem 3.5; A.5).

    It is sum min(p / l, q); with l = 1, 1 - D_LK. Its mean over positions is alpha
    (Corollary 3.6).

    Args:
        p: (..., vocab), the target's distribution.
        q: (..., vocab), the draft's distribution; one-hot for a deterministic draft.
        lenience: l in (0, 1].

    Returns:
        float64 (...), in 0..1.

    Example:
        >>> float(acceptance([0.5, 0.5], [0.75, 0.25]))
        0.75
    """
    target, draft = distribution("p", p), distribution("q", q)
    accepted = np.minimum(target / _lenience(lenience), draft).sum(axis=-1)
    return np.asarray(np.minimum(accepted, 1.0))  # rounding


def residual(p: ArrayLike, q: ArrayLike, lenience: float = 1.0) -> Float64:
    """The distribution of the token after a rejection: norm(max(0, p / l - q)) (section 2.3).

    If that has no mass (p = q with l = 1), no token is rejected, and p is returned.

    Returns:
        float64 (..., vocab), summing to 1.
    """
    target, draft = distribution("p", p), distribution("q", q)
    mass = np.maximum(target / _lenience(lenience) - draft, 0.0)
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, mass / np.where(total > 0, total, 1.0), target))


def output(p: ArrayLike, q: ArrayLike, lenience: float = 1.0) -> Float64:
    """The distribution of the token that a step emits at the first drafted position (A.1; A.5).

    With l = 1 it is p. With l < 1 no token's probability exceeds p / l, and the distance from p is
    ``divergence(p, output(p, q, l))``.

    Returns:
        float64 (..., vocab), summing to 1.
    """
    target, draft = distribution("p", p), distribution("q", q)
    accepted = np.minimum(target / _lenience(lenience), draft)
    rejected = np.maximum(1 - accepted.sum(axis=-1, keepdims=True), 0.0)  # rounding
    return np.asarray(accepted + rejected * residual(target, draft, lenience))


def _lenience(lenience: float) -> float:
    value = float(probability("lenience", lenience))
    if not value:
        raise ValueError("lenience must be > 0, got 0")
    return value
