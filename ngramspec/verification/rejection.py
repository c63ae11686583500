"""Sampled verification: the text keeps the target's distribution.

Deterministic drafts are verified by comparison: the target's token is sampled from its own
distribution p, whatever was drafted, and a drafted token that equals it is accepted. That accepts
a child x with probability p(x), as Algorithm 1 of Leviathan et al. 2023 does for a one-hot q, and
one of several children with the sum of theirs, as sampling without replacement does. One token is
sampled for each committed token and none for rejected ones. So the same seed also gives the text of
plain sampling.

Stochastic drafts, and lenience below 1, take Algorithm 1 itself, child after child: see
``speculative_tokens``.
"""

from __future__ import annotations

import torch

from ngramspec.verification.draws import draw


def speculative_tokens(
    target_probs: torch.Tensor,
    children: torch.Tensor,
    draft_probs: torch.Tensor | None,
    lenience: float = 1.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Algorithm 1 of Leviathan et al. 2023 at m positions, over the children of each.

    The first child x, sampled from q, is accepted with probability min(1, p(x) / (l q(x))). After a
    rejection p becomes the residual, max(0, p/l - q) normalised, q loses x and is normalised (the
    children were sampled without replacement), and the next child is tried (iterative sampling:
    Stratos, section 2; SpecInfer). After the last one the token is sampled from the residual, in
    which rejected children have probability 0; so the token says which child is accepted.

    With lenience l = 1 the token has exactly the distribution p. With l < 1 no token's probability
    exceeds p/l (ibid., A.5). For one child: let B be the sum of min(q, p/l), the probability of
    acceptance. The residual's mass is 1/l - B >= 1 - B. So the probability of x is
    min(q, p/l) + (1 - B) / (1/l - B) * max(0, p/l - q) <= min(q, p/l) + max(0, p/l - q) = p/l.
    For more children, what follows the first rejection takes the residual's place: by induction
    its probability of x is at most max(0, p/l - q) / (1/l - B) / l, and (1 - B) / (1/l - B) / l
    = (1 - B) / (1 - l B) <= 1 gives the same bound.

    Where rounding leaves a residual without mass (p = q up to rounding), the rejection had a
    probability of that order, and the token is sampled from the distribution before it.

    Args:
        target_probs: float32 (m, vocab), p.
        children: int64 (m, k), in the order sampled, -1 where there are fewer.
        draft_probs: float32 (m, vocab), the q that the children were sampled from, without
            replacement; or (k, m, vocab), a q for each child of a position, which gives the
            children before it no probability (several drafters: Stratos, section 2; SpecInfer);
            None: they are deterministic, q one-hot at each.
        lenience: l in (0, 1].
        generator: None: torch's global one.

    Returns:
        int64 (m,): the accepted child or the recovered token; without children a sample of p.
    """
    p, q = target_probs, draft_probs
    own = None if q is None or q.ndim == 2 else q.unbind()
    token = torch.full_like(children[:, 0], -1) if children.shape[1] else None
    for which, x in enumerate(children.unbind(dim=1)):
        assert token is not None
        q = q if own is None else own[which]
        index = x.clamp(min=0)[:, None]
        uniform = torch.rand(index.shape, dtype=p.dtype, device=p.device, generator=generator)
        q_x = 1.0 if q is None else q.gather(1, index)
        open_ = (token < 0) & (x >= 0)
        accepted = open_ & (uniform * (lenience * q_x) < p.gather(1, index))[:, 0]
        token = torch.where(accepted, x, token)
        rejected = (open_ & ~accepted)[:, None]
        p = torch.where(rejected, _residual(p, q, index, lenience), p)
        if q is not None and own is None:
            rest = q.scatter(1, index, 0.0)
            q = torch.where(rejected, _normalised(rest, rest), q)
    sampled = draw(p, generator)
    return sampled if token is None else torch.where(token < 0, sampled, token)


def _residual(
    p: torch.Tensor, q: torch.Tensor | None, index: torch.Tensor, lenience: float
) -> torch.Tensor:
    """max(0, p/l - q), normalised; p where it has no mass. A one-hot q leaves p without x."""
    rest = p.scatter(1, index, 0.0) if q is None else (p / lenience - q).clamp(min=0.0)
    return _normalised(rest, p)


def _normalised(mass: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Each row divided by its sum; the other's row where the sum is 0."""
    total = mass.sum(dim=1, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=torch.finfo(mass.dtype).tiny), otherwise)
