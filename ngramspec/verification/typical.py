"""Typical acceptance: a drafted token is accepted if the target finds it likely enough.

The threshold min(epsilon, delta * exp(-H(p))) falls with the entropy H of the target's
distribution (Medusa, Cai et al. 2024, section 2.3.1): where many tokens are plausible, less likely
ones are accepted. The text's distribution is no longer the target's.
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
    """The most probable child above the threshold, else the target's own choice.

    Args:
        target_probs: float32 (m, vocab), p at m positions.
        children: int64 (m, k), the tokens drafted there, -1 where there are fewer.
        epsilon: the highest threshold, in (0, 1].
        delta: factor of the threshold that falls with the entropy (in nats), > 0.
        otherwise: int64 (m,), the token where no child is typical.

    Returns:
        int64 (m,).
    """
    entropy = torch.special.entr(target_probs).sum(dim=-1)
    threshold = (delta * torch.exp(-entropy)).clamp(max=epsilon)
    return best_child(target_probs, children, threshold, otherwise)
