"""Masks and positions of a token tree in one forward.

The forward's position 0 is the last committed token, and position i + 1 is node i. A node attends
to the committed text, to its ancestors and to itself. Its depth determines its position in the text
(SpecInfer, Miao et al. 2024, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from ngramspec.draft import Int32

Trees = Sequence[Int32 | None]  # the parents of each row's draft; None: it is a chain


def ancestry(parents: Int32) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which positions of a forward attend to which, bool (n + 1, n + 1), and their depths.

    ``parents`` is int32 (n,), parents[i] < i, -1 for the last committed token. In the first array a
    row attends to a column; the depths are int64 (n + 1,), 0 for the last committed token.

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


def tree_positions(last: torch.Tensor, trees: Trees, lengths: Sequence[int]) -> torch.Tensor:
    """Return the positions in the text of each row's last committed token and of its draft.

    A row with fewer nodes than another repeats the position of its last node, so that no position
    exceeds the model's limit.

    Args:
        last: int64 (..., rows, 1), positions of the last committed tokens.
        trees: one for each row, of at most n nodes.
        lengths: for each row, 1 + its number of nodes.

    Returns:
        int64 (..., rows, n + 1).
    """
    depths = np.zeros((len(trees), max(lengths)), np.int64)
    for row, parents, length in zip(depths, trees, lengths, strict=True):
        row[:length] = np.arange(length) if parents is None else ancestry(parents)[1]
        row[length:] = row[length - 1]
    return last + torch.from_numpy(depths).to(last.device, non_blocking=True)


def attended(trees: Trees, width: int, device: torch.device) -> torch.Tensor:
    """Return which positions of a forward attend to which, bool (rows, width, width).

    A row of the result attends to a column. Positions after a row's draft attend to all positions
    before them, so that their scores are finite. Without trees drafts are chains, and rows is 1.
    """
    sees = np.tri(width, dtype=np.bool_)[None].repeat(max(len(trees), 1), axis=0)
    for own, parents in zip(sees, trees, strict=False):
        if parents is not None:
            known = len(parents) + 1
            own[:known, :known] = ancestry(parents)[0]
    return torch.from_numpy(sees).to(device, non_blocking=True)


def tree_mask(
    sees: NDArray[np.bool_] | torch.Tensor,
    past: torch.Tensor | None,
    length: int,
    device: torch.device,
    keys: int | None = None,
) -> torch.Tensor:
    """Return the mask of a forward of w positions after ``length`` ones, bool (batch, 1, w, keys).

    Args:
        sees: bool (w, w) or (batch, w, w), which of the forward's positions attend to which.
        past: (batch, length or more), 0 at masked positions of the cache; None: there are none.
        length: positions in the cache.
        device: of the model.
        keys: columns of the mask, those after the forward's own masked; None: length + w.
    """
    own = sees if isinstance(sees, torch.Tensor) else torch.from_numpy(sees)
    own = own.to(device, non_blocking=True)
    width = own.shape[-1]
    there = torch.ones((1, length), dtype=torch.bool, device=device)
    if past is not None:
        there = past[:, :length].to(torch.bool)
    rows = max(there.shape[0], 1 if own.ndim == 2 else own.shape[0])
    mask = torch.cat((there[:, None].expand(rows, width, -1), own.expand(rows, -1, -1)), dim=2)
    if keys is not None:
        mask = pad(mask, (0, keys - length - width))
    return mask[:, None]
