"""Greedy verification (Stratos, appendix A): a draft token stands if it is the target's argmax."""

from __future__ import annotations

import torch

from ngramspec.draft import Int32


def greedy_tokens(logits: torch.Tensor) -> list[int]:
    """The target's choice at every position: one argmax on the device, one transfer to the host.

    Args:
        logits: (n + 1, vocab), any floating dtype. The first of equal maxima wins, as in
            ``generate``; a widening cast to float32 would change neither values nor order.

    Returns:
        n + 1 token ids.
    """
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    return tokens


def accepted_prefix(draft: Int32, tokens: list[int]) -> int:
    """How many leading draft tokens, int32 (n,), equal the target's."""
    for i, (guess, token) in enumerate(zip(draft.tolist(), tokens, strict=False)):
        if guess != token:
            return i
    return min(len(draft), len(tokens))
