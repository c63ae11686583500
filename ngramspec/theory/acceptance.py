"""How often a drafted token is accepted, from the target's distribution p and the draft's q.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 3.2 and
appendices A.2 and A.5; Stratos, "Speculative Decoding", section 2. Distributions are arrays of
shape (..., vocab); everything before the last axis is a batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ngramspec.theory.arrays import Float64, distribution, real


def divergence(p: ArrayLike, q: ArrayLike) -> Float64:
    """D_LK(p, q), half of the summed difference (Definition 3.2, Lemma 3.3).

    It is symmetric, 0 where p = q, and 1 where p and q have no token in common (Corollary 3.4): the
    total variation distance.

    Args:
        p: (..., vocab).
        q: (..., vocab).

    Returns:
        float64 (...), in 0..1.
    """
    first, second = distribution("p", p), distribution("q", q)
    return np.asarray(np.abs(first - second).sum(axis=-1) / 2)


def acceptance(p: ArrayLike, q: ArrayLike, lenience: float = 1.0) -> Float64:
    """beta: the probability that a token drawn from q is accepted (Theorem 3.5; A.5).

    It is sum min(p / l, q), with l = 1 the complement of D_LK. Its mean over positions is alpha
    (Corollary 3.6).

    Args:
        p: (..., vocab), the target's.
        q: (..., vocab), the draft's; one-hot for a deterministic draft.
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


def exact_match(p: ArrayLike, q: ArrayLike) -> Float64:
    """P(a token drawn from q equals one drawn from p), sum p q: never above ``acceptance``.

    Returns:
        float64 (...), in 0..1.
    """
    return np.asarray((distribution("p", p) * distribution("q", q)).sum(axis=-1))


def rejection_sampling(p: ArrayLike, q: ArrayLike) -> Float64:
    """P(accepted) of one round of ordinary rejection sampling, min over x of q(x) / p(x) (A.2).

    It is never above ``acceptance``, and 0 where q leaves out a token of p.

    Returns:
        float64 (...), in 0..1.
    """
    target, draft = distribution("p", p), distribution("q", q)
    ratio = np.full(np.broadcast_shapes(target.shape, draft.shape), np.inf)
    np.divide(draft, target, out=ratio, where=target > 0)
    return np.asarray(np.minimum(ratio.min(axis=-1), 1.0))


def residual(p: ArrayLike, q: ArrayLike, lenience: float = 1.0) -> Float64:
    """What the token is drawn from after a rejection: norm(max(0, p / l - q)) (section 2.3).

    Where that has no mass (p = q with l = 1) no token is rejected, and p is returned.

    Returns:
        float64 (..., vocab), summing to 1.
    """
    target, draft = distribution("p", p), distribution("q", q)
    mass = np.maximum(target / _lenience(lenience) - draft, 0.0)
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, mass / np.where(total > 0, total, 1.0), target))


def output(p: ArrayLike, q: ArrayLike, lenience: float = 1.0) -> Float64:
    """The distribution of the token that a step puts at the first drafted position (A.1; A.5).

    With l = 1 it is p. With l < 1 no token's probability exceeds p / l, and the distance from p is
    ``divergence(p, output(p, q, l))``.

    Returns:
        float64 (..., vocab), summing to 1.
    """
    target, draft = distribution("p", p), distribution("q", q)
    accepted = np.minimum(target / _lenience(lenience), draft)
    rejected = np.maximum(1 - accepted.sum(axis=-1, keepdims=True), 0.0)  # rounding
    return np.asarray(accepted + rejected * residual(target, draft, lenience))


def greedy_acceptance(p: ArrayLike, token: ArrayLike, lenience: float = 1.0) -> Float64:
    """1 where a token is accepted at temperature 0: p(x) >= l max p (A.5, corrected), else 0.

    The paper prints the inequality the other way round; the docs derive why it cannot be meant.

    Args:
        p: (..., vocab), the target's before standardisation.
        token: int (...), the drafted tokens.
        lenience: l in (0, 1]; 1 accepts the most probable token only (and its equals).

    Returns:
        float64 (...), 0 or 1.
    """
    target = distribution("p", p)
    chosen = np.take_along_axis(target, np.asarray(token, np.int64)[..., None], axis=-1)[..., 0]
    return np.asarray(chosen >= _lenience(lenience) * target.max(axis=-1), np.float64)


def iterative_acceptance(p: ArrayLike, proposals: ArrayLike) -> Float64:
    """P(the k-th of K drawn children is the accepted one) (Stratos, section 2; SpecInfer).

    Child k is drawn from q_k and tried after k - 1 rejections, each of which has made p the
    residual of what it was. The residual does not depend on the tokens drawn.

    Args:
        p: (vocab,).
        proposals: (K, vocab), q_1 to q_K, drawn independently of each other.

    Returns:
        float64 (K,), summing to P(any is accepted).
    """
    left, open_ = distribution("p", p), 1.0
    found = []
    for q in distribution("proposals", proposals):
        accepted = float(acceptance(left, q))
        found.append(open_ * accepted)
        open_ *= 1 - accepted
        left = residual(left, q)
    return np.asarray(found, np.float64)


def _lenience(lenience: float) -> float:
    value = float(real("lenience", lenience, 0.0, 1.0))
    if not value:
        raise ValueError("lenience must be > 0, got 0")
    return value
