"""Masks and positions that grow with the text, in ragged batches, too.

In a ragged batch, rows accept different numbers of tokens. All rows write at the same positions of
the cache, and a position where a row has no token of its own is a gap: 0 in the row's attention
mask. ``position_ids`` say where a token is in its text; its slot in the cache does not. The last
column of every tensor here belongs to the last committed token, which is not in the cache yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def prompt_end(
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    cached: int = 0,
    mask_length: int | None = None,
    prefix: str = "",
) -> int:
    """How many positions a row has behind the prefill, those already in the cache included.

    The mask says it, or the length of the mask that ``generate`` left out. A prompt without either
    is taken to be all new.

    Args:
        input_ids: int64 (batch, prompt).
        kwargs: of the model's forward, as ``generate`` prepared them.
        cached: positions that the cache holds already.
        mask_length: of the mask that was left out, or None.
        prefix: of the arguments' names: "decoder_" for an encoder-decoder model.
    """
    mask = kwargs.get(f"{prefix}attention_mask")
    if mask is not None:
        return int(mask.shape[-1])
    if mask_length is not None:
        return mask_length
    embeds = kwargs.get(f"{prefix}inputs_embeds")
    return cached + int((input_ids if embeds is None else embeds).shape[1])


def next_position(position_ids: torch.Tensor | None) -> int:
    """The position behind the farthest of a prompt's last tokens; 0: the model counts itself.

    Args:
        position_ids: int64 (..., batch, prompt), or None.
    """
    if position_ids is None or not position_ids.numel():
        return 0
    return int(position_ids[..., -1].max()) + 1


def grow(name: str, value: torch.Tensor, count: int) -> torch.Tensor:
    """An argument for ``count`` more tokens, as ``generate`` grows it by one.

    Args:
        name: of the model's argument.
        value: (..., batch, length).
        count: columns to add, >= 0.

    Returns:
        (..., batch, length + count).
    """
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
    """An argument for ``count`` more positions, of which each row uses its own number.

    Args:
        name: of the model's argument.
        value: (..., batch, length), whose last column is each row's last committed token.
        count: columns to add, >= 0.
        lengths: per row, how many columns from that one on are its own; the others are gaps.
        committed: whether the columns are committed. Then the last column becomes, for every row,
            that of its last committed token, which comes behind ``lengths - 1`` others.

    Returns:
        (..., batch, length + count).
    """
    if count == 0:
        return value
    if not name.endswith(("attention_mask", "position_ids")):
        return grow(name, value, count)
    own = torch.tensor(lengths, device="cpu").to(value.device, non_blocking=True)
    own = own[:, None]  # (batch, 1)
    column = torch.arange(1, count + 1, device=value.device)
    if name.endswith("position_ids"):
        steps = torch.minimum(column, own - 1)  # a gap's position stays in the model's range
        return torch.cat((value, value[..., -1:] + steps.to(value.dtype)), dim=-1)
    if committed:  # columns from the old last one on: those in the cache, then the new last one
        column = torch.arange(count, device=value.device)
        there = (column < own - 1).to(value.dtype)
        last = (own > 1).to(value.dtype)  # 0 in rows that had ended
        return torch.cat((value[..., :-1], there, last), dim=-1)
    return torch.cat((value, (column < own).to(value.dtype)), dim=-1)


def used_slots(mask: torch.Tensor, used: int) -> torch.Tensor:
    """Where each row's own positions are, with gaps moved to the left.

    Args:
        mask: (batch, length), 0 at gaps.
        used: the most positions that a row uses.

    Returns:
        int64 (batch, used): indices in order; a row that uses fewer begins with gaps.
    """
    order = mask.to(torch.int64).argsort(dim=1, stable=True)  # gaps first, then the row's own
    return order[:, mask.shape[1] - used :]
