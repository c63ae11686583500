"""Greedy verification (Stratos, appendix A): a draft token stands if it is the target's argmax."""

from __future__ import annotations

import torch


def greedy_tokens(logits: torch.Tensor) -> list[list[int]]:
    """The target's choice at every position: one argmax on the device, one transfer to the host.

    Args:
        logits: (batch, n + 1, vocab), any floating dtype. The first of equal maxima wins, as in
            ``generate``; a widening cast to float32 would change neither values nor order.

    Returns:
        n + 1 token ids for each row.
    """
    tokens: list[list[int]] = logits.argmax(dim=-1).tolist()
    return tokens
