"""Lenient greedy verification: a child that is nearly as probable as the argmax is accepted."""

from __future__ import annotations

import torch


def lenient_tokens(
    target_probs: torch.Tensor, children: torch.Tensor, lenience: float
) -> torch.Tensor:
    """The most probable drafted child x with p(x) >= lenience * max p; else the argmax.

    See Leviathan et al. 2023, A.5, for the argmax. Lenience 1 accepts only the argmax and tokens
    that tie with it. ``target_probs`` is float32 (m, vocab), ``children`` int64 (m, k), padded with
    -1, and the result int64 (m,).
    """
    best, argmax = target_probs.max(dim=-1)
    return best_child(target_probs, children, lenience * best, argmax)


def best_child(
    target_probs: torch.Tensor,
    children: torch.Tensor,
    threshold: torch.Tensor,
    otherwise: torch.Tensor,
) -> torch.Tensor:
    """The most probable child that reaches the threshold; of equal ones the first; int64 (m,).

    ``target_probs`` is float32 (m, vocab), ``children`` int64 (m, k), padded with -1, ``threshold``
    float32 (m,), and ``otherwise`` int64 (m,), the tokens for positions without such a child.
    """
    if children.shape[1] == 0:
        return otherwise
    probs = target_probs.gather(1, children.clamp(min=0)).masked_fill(children < 0, -1.0)
    best, which = probs.max(dim=-1)
    child = children.gather(1, which[:, None])[:, 0]
    return torch.where(best >= threshold, child, otherwise)
