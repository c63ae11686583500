"""Masks and positions of a token tree in one forward, and which targets can take one.

The forward's position 0 is the last committed token, position i + 1 is node i. A node attends to
the committed text, to its ancestors and to itself, and stands where its depth says (SpecInfer,
Miao et al. 2024, section 4.2).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ngramspec.draft import Int32

ATTENTIONS = ("sdpa", "eager")  # those that take a mask of four dimensions


def ancestry(parents: Int32) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Who attends to whom among a forward's positions, and how deep each stands.

    Args:
        parents: int32 (n,), parents[i] < i, -1 for the last committed token.

    Returns:
        (bool (n + 1, n + 1), True where the row attends to the column; int64 (n + 1,), depths,
        0 for the last committed token).

    Example:
        >>> ancestry(np.array([-1, -1, 0], np.int32))[1].tolist()
        [0, 1, 1, 2]
    """
    n = len(parents)
    sees = np.eye(n + 1, dtype=np.bool_)
    depths = np.zeros(n + 1, np.int64)
    for node, parent in enumerate(parents.tolist(), 1):
        sees[node] |= sees[parent + 1]
        depths[node] = depths[parent + 1] + 1
    return sees, depths


def tree_mask(
    sees: NDArray[np.bool_], past: torch.Tensor | None, length: int, like: torch.Tensor, eager: bool
) -> torch.Tensor:
    """The attention mask of a tree behind ``length`` positions in the cache.

    Args:
        sees: bool (n + 1, n + 1), of ``ancestry``.
        past: (1, length or more), 0 at positions of the cache that nobody attends to, or None.
        length: positions in the cache.
        like: a tensor on the device and in the dtype of the model.
        eager: whether the attention adds its mask to the scores, instead of taking a bool.

    Returns:
        (1, 1, n + 1, length + n + 1): bool, or 0 and the dtype's lowest value.
    """
    own = torch.from_numpy(sees).to(like.device, non_blocking=True)
    there = torch.ones((1, length), dtype=torch.bool, device=like.device)
    if past is not None:
        there = past[:, :length].to(torch.bool)
    mask = torch.cat((there.expand(len(sees), -1), own), dim=1)[None, None]
    if not eager:
        return mask
    lowest = torch.finfo(like.dtype).min
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, lowest)


def attention_of(model: Any) -> str:
    """Name of the attention implementation that a model's decoder runs with."""
    return str(model.config.get_text_config(decoder=True)._attn_implementation)


def why_no_tree(target: Any, rows: int) -> str | None:
    """Why a target cannot verify trees, in a few words; None if it can."""
    attention = getattr(
        target.model.config.get_text_config(decoder=True), "_attn_implementation", ""
    )
    if rows > 1:
        return f"a batch of {rows} rows"
    if target.encodes:
        return "an encoder-decoder model"
    if not target.cache.holes:
        return "a cache with sliding or static layers"
    if attention not in ATTENTIONS:
        return f"attention implementation {attention}"
    if target.states:
        return "attentions or hidden states asked for"
    if target.kwargs.get("position_ids") is None:
        return "a model that counts its positions itself"
    module = sys.modules.get(type(target.model).__module__)
    if not hasattr(module, "create_causal_mask"):
        return "a model that makes its masks itself"
    return None
