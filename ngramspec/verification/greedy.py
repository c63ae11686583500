"""Greedy verification (Stratos, appendix A): a token equal to the target's argmax is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Tokens(Protocol):
    """A row's tokens, by position."""

    def __getitem__(self, position: int, /) -> int: ...


class OnDemand:
    """The argmax at each position of (n + 1, vocab) logits on a CPU, computed when it is looked up.

    NumPy's argmax is about six times as fast as torch's.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def __getitem__(self, position: int) -> int:
        return int(self._logits[position].float().numpy().argmax())


def tokens_on_demand(logits: torch.Tensor) -> Sequence[Tokens]:
    """The target's argmax at every position of each row, computed when it is looked up.

    ``logits`` is (batch, n + 1, vocab), on a CPU, any floating dtype. As in ``generate``, the first
    of equal maxima is chosen, and NaN counts as the largest. The cast to float32 changes neither
    values nor order.
    """
    return [OnDemand(row) for row in logits.detach()]


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
