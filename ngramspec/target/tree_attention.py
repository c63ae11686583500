"""Masks and positions of a token tree in one forward.

The forward's position 0 is the last committed token, position i + 1 is node i. A node attends to
the committed text, to its ancestors and to itself, and its depth gives its position in the text
(SpecInfer, Miao et al. 2024, section 4.2).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from ngramspec.draft import Int32


def ancestry(parents: Int32) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which of a forward's positions attends to which, and the depth of each.

    Args:
        parents: int32 (n,), parents[i] < i, -1 for the last committed token.

    Returns:
        bool (n + 1, n + 1), True where the row attends to the column; and int64 (n + 1,), the
        depths, 0 for the last committed token.

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


def tree_positions(last: torch.Tensor, parents: Int32) -> torch.Tensor:
    """Positions in the text of the last committed token and of a tree's n nodes behind it.

    Args:
        last: int64 (..., rows, 1), the last committed tokens'.
        parents: int32 (n,), or (rows, n).

    Returns:
        int64 (..., rows, n + 1).
    """
    depths = np.stack([ancestry(each)[1] for each in np.atleast_2d(parents)])
    positions: torch.Tensor = last + torch.from_numpy(depths).to(last.device, non_blocking=True)
    return positions


def attended(parents: Int32 | None, width: int, device: torch.device) -> torch.Tensor:
    """Which of a forward's positions attends to which, on a device.

    Args:
        parents: int32 (n,), of the tree, or (rows, n); None: the draft is a chain.
        width: of the forward, > n. Padding behind a tree attends to all positions before it, so
            that its scores are finite.
        device: of the model.

    Returns:
        bool (width, width) or (rows, width, width), True where the row attends to the column.
    """
    sees = np.tri(width, dtype=np.bool_)
    if parents is not None:
        known = parents.shape[-1] + 1
        sees = np.tile(sees, (*parents.shape[:-1], 1, 1))
        own = np.stack([ancestry(each)[0] for each in np.atleast_2d(parents)])
        sees[..., :known, :known] = own.reshape(*parents.shape[:-1], known, known)
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
        sees: bool (w, w) or (batch, w, w), which of the forward's positions attends to which.
        past: (batch, length or more), 0 at positions of the cache that no row attends to; None: all
            rows attend to all.
        length: positions in the cache.
        like: a tensor on the device and in the dtype of the model.
        eager: whether the attention adds its mask to the scores, instead of taking a bool.
        keys: columns of the mask, >= length + w; those behind the forward's own are masked. None:
            length + w.

    Returns:
        (batch, 1, w, keys): bool, or 0 and the dtype's lowest value. The batch is 1 without
        ``past``, unless each row has its own ``sees``.
    """
    own = sees if isinstance(sees, torch.Tensor) else torch.from_numpy(sees)
    own = own.to(like.device, non_blocking=True)
    width = own.shape[-1]
    there = torch.ones((1, length), dtype=torch.bool, device=like.device)
    if past is not None:
        there = past[:, :length].to(torch.bool)
    rows = max(there.shape[0], own.shape[0] if own.ndim == 3 else 1)
    mask = torch.cat((there[:, None].expand(rows, width, -1), own.expand(rows, -1, -1)), dim=2)
    if keys is not None:
        mask = pad(mask, (0, keys - length - width))
    mask = mask[:, None]
    if not eager:
        return mask
    lowest = torch.finfo(like.dtype).min
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, lowest)
