"""Masks and positions of a token tree in one forward, and which targets can take one.

The forward's position 0 is the last committed token, position i + 1 is node i. A node attends to
the committed text, to its ancestors and to itself, and stands where its depth says (SpecInfer,
Miao et al. 2024, section 4.2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from ngramspec.draft import Int32
from ngramspec.target.traits import makes_standard_masks

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


def attended(parents: Int32 | None, width: int, device: torch.device) -> torch.Tensor:
    """Which of a forward's positions attends to which, bool (width, width), on a device.

    Args:
        parents: of the tree, or None: a chain.
        width: of the forward. What pads a tree attends to all before it, so that it is finite.
        device: of the model.
    """
    sees = np.tri(width, dtype=np.bool_)
    if parents is not None:
        known = len(parents) + 1
        sees[:known, :known] = ancestry(parents)[0]
    return torch.from_numpy(sees).to(device, non_blocking=True)


def tree_mask(
    sees: NDArray[np.bool_] | torch.Tensor,
    past: torch.Tensor | None,
    length: int,
    like: torch.Tensor,
    eager: bool,
    keys: int | None = None,
) -> torch.Tensor:
    """The attention mask of a forward of w positions behind ``length`` ones in the cache.

    Args:
        sees: bool (w, w), which of the forward's positions attends to which.
        past: (batch, length or more), 0 at positions of the cache that nobody attends to, or None.
        length: positions in the cache.
        like: a tensor on the device and in the dtype of the model.
        eager: whether the attention adds its mask to the scores, instead of taking a bool.
        keys: how many positions it is given, those behind the forward's masked; None: no others.

    Returns:
        (batch, 1, w, keys): bool, or 0 and the dtype's lowest value. Batch is 1 without ``past``.
    """
    own = sees if isinstance(sees, torch.Tensor) else torch.from_numpy(sees)
    own = own.to(like.device, non_blocking=True)
    width = own.shape[0]
    there = torch.ones((1, length), dtype=torch.bool, device=like.device)
    if past is not None:
        there = past[:, :length].to(torch.bool)
    rows = there.shape[0]
    mask = torch.cat((there[:, None].expand(-1, width, -1), own.expand(rows, -1, -1)), dim=2)
    if keys is not None:
        mask = pad(mask, (0, keys - length - width))
    mask = mask[:, None]
    if not eager:
        return mask
    lowest = torch.finfo(like.dtype).min
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, lowest)


def attention_of(model: Any) -> str:
    """Name of the attention implementation that a model's decoder runs with."""
    return str(getattr(model.config.get_text_config(decoder=True), "_attn_implementation", ""))


def takes_masks(model: Any) -> bool:
    """Whether a model's attention takes a mask of four dimensions, and as it is."""
    own = getattr(type(model), "create_masks_for_generate", None)
    standard = own is None and makes_standard_masks(model)
    return attention_of(model) in ATTENTIONS and standard and not has_alibi(model)


def has_alibi(model: Any) -> bool:
    """Whether a model's attention adds biases by distance, which it makes from a mask per token."""
    config = model.config.get_text_config(decoder=True)
    own = getattr(config, "attn_config", None)  # MPT's
    asked = bool(getattr(config, "alibi", False) or getattr(own, "alibi", False))
    return asked or config.model_type in ("bloom", "mpt")


def has_windows(model: Any) -> bool:
    """Whether a model's own masks hide what is behind a window, whatever its cache keeps."""
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any("sliding" in kind or "chunked" in kind for kind in kinds)
    return any(
        getattr(config, name, None) is not None
        for name in ("sliding_window", "attention_chunk_size")
    )
