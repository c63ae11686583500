"""Sampling by draw and compare, for deterministic drafts.

The target's next token is drawn from its own distribution, whatever was drafted, and a draft token
stands if it equals the draw. So the text has exactly the target's distribution, and since one draw
is made per committed token and none for rejected ones, it is the text of plain sampling with the
same seed. A draft token x is accepted with probability p(x): for a one-hot draft distribution that
is what Algorithm 1 of Leviathan et al. 2023 accepts, too.
"""

from __future__ import annotations

import torch


def draw(scores: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row of processed scores, with torch's global generator.

    Args:
        scores: float32 (rows, vocab).

    Returns:
        int64 (rows,), on the scores' device. The same operations on the same shape as ``generate``.
    """
    probs = torch.softmax(scores, dim=-1)
    return torch.multinomial(probs, num_samples=1).squeeze(1)
