"""Masks and positions of growing sequences, in batches whose rows grow unequally too.

In a ragged batch all rows write at the same positions of the cache, and a position where a row has
no token of its own is a gap: 0 in the row's attention mask. Where a token stands in its text is
said by ``position_ids``, not by its place in the cache. The last column of every tensor here is
that of the last committed token, which is not in the cache yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def grow(name: str, value: torch.Tensor, count: int) -> torch.Tensor:
    """``value`` (..., length) for ``count`` more tokens, as ``generate`` grows it by one."""
    if count == 0:
        return value
    last = value[..., -1:]
    shape = (*value.shape[:-1], count)
    if name.endswith("position_ids"):
        steps = torch.arange(1, count + 1, dtype=value.dtype, device=value.device)
        more = last + steps
    elif name.endswith("attention_mask"):
        more = value.new_ones(shape)
    elif name == "mm_token_type_ids":
        more = value.new_zeros(shape)
    else:
        more = last.expand(shape)
    return torch.cat((value, more), dim=-1)


def grow_ragged(
    name: str, value: torch.Tensor, count: int, lengths: Sequence[int], *, committed: bool
) -> torch.Tensor:
    """``value`` (..., batch, length) for ``count`` more positions, of which rows use their own.

    Args:
        name: of the model's argument.
        value: its value, whose last column is each row's last committed token.
        count: columns to add.
        lengths: per row, from that column on, how many columns are its own; the others are gaps.
        committed: whether the columns are committed: then the last one becomes, for every row, that
            of its last committed token, which stands behind ``lengths - 1`` others.
    """
    if count == 0:
        return value
    if not name.endswith(("attention_mask", "position_ids")):
        return grow(name, value, count)
    own = torch.tensor(lengths, device="cpu").to(value.device, non_blocking=True)[
        :, None
    ]  # (batch, 1)
    column = torch.arange(1, count + 1, device=value.device)
    if name.endswith("position_ids"):
        steps = torch.minimum(column, own - 1)  # a gap's place is in the model's range, too
        return torch.cat((value, value[..., -1:] + steps.to(value.dtype)), dim=-1)
    if committed:  # columns from the old last one on: those in the cache, then the new last one
        column = torch.arange(count, device=value.device)
        there = (column < own - 1).to(value.dtype)
        last = (own > 1).to(value.dtype)  # a row that took part goes on
        return torch.cat((value[..., :-1], there, last), dim=-1)
    return torch.cat((value, (column < own).to(value.dtype)), dim=-1)


def used_slots(mask: torch.Tensor, used: int) -> torch.Tensor:
    """Where each row's own positions are, moved to the right end.

    Args:
        mask: (batch, length), 0 at gaps.
        used: the most that a row uses.

    Returns:
        int64 (batch, used): indices in order; a row with fewer begins with gaps.
    """
    order = mask.to(torch.int64).argsort(dim=1, stable=True)  # gaps first, each kind in order
    return order[:, mask.shape[1] - used :]
