"""Masks and positions of forwards over drafts.

A forward's position 0 is the last committed token, and position i + 1 is node i of the draft. A
node attends to the committed text, to its ancestors and to itself, and its depth determines its
position in the text (SpecInfer, Miao et al. 2024, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from ngramspec.draft import Int32
from ngramspec.hf_model.compat.devices import sent

Trees = Sequence[Int32 | None]  # the parents of each row's draft; None: it is a chain
Masks = torch.Tensor | dict[str, torch.Tensor]  # one for all layers, or one for each type of layers


def ancestry(parents: Int32) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which positions attend to which, bool (n + 1, n + 1), and their depths, (n + 1,)."""
    n = len(parents)
    sees = np.eye(n + 1, dtype=np.bool_)
    depths = np.zeros(n + 1, np.int64)
    for node, parent in enumerate(parents.tolist(), 1):
        sees[node] |= sees[parent + 1]
        depths[node] = depths[parent + 1] + 1
    return sees, depths


def tree_positions(last: torch.Tensor, trees: Trees, lengths: Sequence[int]) -> torch.Tensor:
    """Return the text positions of each row's last token, (..., rows, 1), and its draft."""
    depths = np.zeros((len(trees), max(lengths)), np.int64)
    for row, parents, length in zip(depths, trees, lengths, strict=True):
        row[:length] = np.arange(length) if parents is None else ancestry(parents)[1]
        row[length:] = row[length - 1]
    return last + sent(torch.from_numpy(depths), last.device)


def tree_mask(
    trees: Trees,
    width: int,
    past: torch.Tensor | None,
    length: int,
    device: torch.device,
    keys: int | None = None,
) -> torch.Tensor:
    """Return the mask of a forward of ``width`` after ``length`` positions, (rows, 1, width, keys).

    Positions after a row's draft attend to all before them, so that their scores are finite.
    ``past``, (rows, length or more), is 0 at masked positions. Columns after its own are masked.
    """
    new = torch.ones((1, width, width), dtype=torch.bool, device=device).tril()
    if trees:
        sees = np.tri(width, dtype=np.bool_)[None].repeat(len(trees), axis=0)
        for own, parents in zip(sees, trees, strict=True):
            if parents is not None:
                known = len(parents) + 1
                own[:known, :known] = ancestry(parents)[0]
        new = sent(torch.from_numpy(sees), device)
    there = new.new_ones((1, length)) if past is None else past[:, :length].to(torch.bool)
    rows = max(len(there), len(new))
    mask = torch.cat((there[:, None].expand(rows, width, -1), new.expand(rows, -1, -1)), dim=2)
    if keys is not None:
        mask = pad(mask, (0, keys - length - width))
    return mask[:, None]
