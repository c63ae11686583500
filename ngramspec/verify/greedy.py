"""Greedy verification (Stratos, appendix A): a draft token stands if it is the target's argmax."""

from __future__ import annotations

import torch


def greedy_tokens(logits: torch.Tensor) -> list[list[int]]:
    """The target's choice at every position: one argmax on the device, one transfer to the host.

    Args:
        logits: (batch, n + 1, vocab), any floating dtype. The first of equal maxima wins, as in
            ``generate``, and NaN over all; a widening cast changes neither values nor order. On a
            CPU NumPy does it, which is some six times as fast as torch.

    Returns:
        n + 1 token ids for each row.
    """
    on_host = logits.device.type == "cpu"
    best = logits.detach().float().numpy() if on_host else logits
    tokens: list[list[int]] = best.argmax(-1).tolist()
    return tokens


def lenient_tokens(
    target_probs: torch.Tensor, children: torch.Tensor, lenience: float
) -> torch.Tensor:
    """A drafted child x with p(x) >= lenience * max p, the most probable of them; else the argmax.

    Leviathan et al. 2023, A.5, for the argmax: lenience 1 accepts the argmax alone (and what ties
    with it).

    Args:
        target_probs: float32 (m, vocab), p at m positions.
        children: int64 (m, k), the tokens drafted there, -1 where there are fewer.
        lenience: in (0, 1].

    Returns:
        int64 (m,).
    """
    best, argmax = target_probs.max(dim=-1)
    return best_child(target_probs, children, lenience * best, argmax)


def best_child(
    target_probs: torch.Tensor,
    children: torch.Tensor,
    threshold: torch.Tensor,
    otherwise: torch.Tensor,
) -> torch.Tensor:
    """The most probable child whose probability reaches the threshold, the first of equals.

    Args:
        target_probs: float32 (m, vocab).
        children: int64 (m, k), -1 where there are fewer.
        threshold: float32 (m,).
        otherwise: int64 (m,), for positions without such a child.
    """
    if children.shape[1] == 0:
        return otherwise
    probs = target_probs.gather(1, children.clamp(min=0)).masked_fill(children < 0, -1.0)
    best, which = probs.max(dim=-1)
    child = children.gather(1, which[:, None])[:, 0]
    return torch.where(best >= threshold, child, otherwise)
