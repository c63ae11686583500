"""torch's attention kernels on CUDA, chosen for forwards over several positions."""

from __future__ import annotations

import torch
from torch import Tensor


def skips_mask(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes them and aligns its causal mask to the end (not AMD's)."""
    kernels, fits = torch.backends.cuda, query.shape[3] % 8 == 0 and not torch.version.hip
    given = kernels.SDPAParams(query, key, value, None, 0.0, False, True)
    return fits and kernels.can_use_flash_attention(given)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> Tensor | None:
    """Attend under a mask added to the scores; without one under FlashAttention's causal mask.

    Returns None if the memory-efficient kernel cannot be used. So cuDNN is used only if the caller
    has excluded the other kernels: it plans for every new shape, which takes 20 to 70 ms, and
    forwards with drafts seldom have the same shape twice.
    """
    kernels, aten = torch.backends.cuda, torch.ops.aten
    out: Tensor | None = None
    if mask is None:
        flash = aten._scaled_dot_product_flash_attention
        out = flash(query, key, value, is_causal=True, scale=scale)[0]
        return out
    mask = mask.expand(*query.shape[:3], -1)
    given = kernels.SDPAParams(query, key, value, mask, 0.0, False, False)
    if kernels.can_use_efficient_attention(given):
        efficient = aten._scaled_dot_product_efficient_attention
        out = efficient(query, key, value, mask, False, scale=scale)[0]
    return out
