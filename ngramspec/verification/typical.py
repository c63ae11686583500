"""Typical acceptance: a draft token is accepted if its probability reaches a threshold.

The threshold min(epsilon, delta * exp(-H(p))) decreases with the entropy H of the target's
distribution (Medusa, Cai et al. 2024, section 2.3.1). So if many tokens are plausible, less
probable ones are accepted. The text's distribution is no longer the target's.
"""

from __future__ import annotations

import torch

from ngramspec.verification.greedy import best_child


def typical_tokens(
    target_probs: torch.Tensor,
    children: torch.Tensor,
    epsilon: float,
    delta: float,
    otherwise: torch.Tensor,
) -> torch.Tensor:
    """The most probable child that reaches the threshold, else the target's own token, int64 (m,).

    ``target_probs``, ``children`` and ``otherwise`` are those of ``best_child``. The entropy is in
    nats.
    """
    entropy = torch.special.entr(target_probs).sum(dim=-1)
    threshold = (delta * torch.exp(-entropy)).clamp(max=epsilon)
    return best_child(target_probs, children, threshold, otherwise)
