"""Attention masks and positions that grow with the text.

In a ragged batch, rows accept different numbers of tokens. All rows write to the same slots of the
cache, and a slot without a token of the row is a gap: 0 in the row's attention mask. A token's
place in its text is given by ``position_ids``, not by its slot. The last column of every tensor
here belongs to the last committed token, which is not in the cache yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def prompt_end(
    input_ids: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    cached: int = 0,
    mask_length: int | None = None,
    prefix: str = "",
) -> int:
    """Return how many positions a row has after the prefill, including those cached before it.

    This is the length of the mask, or ``mask_length``, that of the mask that ``generate`` left
    out. A prompt without either is assumed to be new as a whole. In an encoder-decoder model, the
    names of the arguments have the ``prefix`` "decoder_".
    """
    mask = kwargs.get(f"{prefix}attention_mask")
    if mask is not None:
        return int(mask.shape[-1])
    if mask_length is not None:
        return mask_length
    embeds = kwargs.get(f"{prefix}inputs_embeds")
    return cached + int((input_ids if embeds is None else embeds).shape[1])


def next_position(position_ids: torch.Tensor | None) -> int:
    """Return 1 + the greatest position of the rows' last prompt tokens.

    ``position_ids`` is int64 (..., batch, prompt), or None if the model counts positions itself;
    the result is then 0.
    """
    if position_ids is None or not position_ids.numel():
        return 0
    return int(position_ids[..., -1].max()) + 1


def grow(name: str, value: torch.Tensor, count: int) -> torch.Tensor:
    """Extend an argument, (..., batch, length), by ``count`` tokens as ``generate`` does by one."""
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
    """Extend an argument by ``count`` positions, some of which are gaps in some rows.

    Args:
        name: of the model's argument.
        value: (..., batch, length), whose last column is each row's last committed token.
        count: columns to add, >= 0.
        lengths: for each row, how many columns are its own, counted from that last column.
        committed: whether the last column of the result belongs to each row's last committed
            token, which is then its ``lengths``-th own column.
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
    if committed:  # from the old last column on: columns in the cache, then the new last one
        column = torch.arange(count, device=value.device)
        there = (column < own - 1).to(value.dtype)
        last = (own > 1).to(value.dtype)  # 0 in rows that had finished
        return torch.cat((value[..., :-1], there, last), dim=-1)
    return torch.cat((value, (column < own).to(value.dtype)), dim=-1)


def padding_of(mask: torch.Tensor) -> torch.Tensor:
    """Return how many zeros each row of a mask begins with, int64 (batch, 1)."""
    return (mask.cumsum(dim=-1) == 0).sum(dim=-1, keepdim=True)


def used_slots(mask: torch.Tensor, used: int) -> torch.Tensor:
    """Return the slots of each row's own positions, int64 (batch, used), ascending.

    ``mask`` is (batch, length), 0 at gaps. ``used`` is the number of positions of the row that has
    most; a row with fewer begins with gaps.
    """
    order = mask.to(torch.int64).argsort(dim=1, stable=True)  # gaps first, then the row's own
    return order[:, mask.shape[1] - used :]


class OwnSlots:
    """Which slots of the cache hold a token of each row in a ragged batch; kept on the host."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self._mask = mask  # (rows, slots), at first those of the prefill
        self._unfinished = np.ones(len(mask), np.bool_)  # rows that have not ended
        self.used: list[int] = mask.sum(axis=1).tolist()  # each row's tokens in the cache

    def commit(self, kept: Sequence[int]) -> None:
        """Add the positions of a forward that stay, for each row; 0 if the row has ended."""
        counts = np.array(kept)
        own = np.arange(max(kept)) < counts[:, None]
        self._mask = np.concatenate((self._mask, own), axis=1)
        self._unfinished = counts > 0
        self.used = [used + more for used, more in zip(self.used, kept, strict=True)]

    def compact(self, slots: int) -> None:
        """Move each row's tokens to the end of ``slots`` slots."""
        self._mask = np.arange(slots) >= slots - np.array(self.used)[:, None]

    def keep_rows(self, order: Sequence[int]) -> None:
        """Keep some rows of the batch; see ``KVCache.keep_rows``."""
        self._mask, self._unfinished = self._mask[list(order)], self._unfinished[list(order)]
        self.used = [self.used[place] for place in order]

    def needed(self, window: int) -> int:
        """Return how many of the last slots hold ``window - 1`` tokens of each unfinished row.

        Layers with this window need no other slots.
        """
        masks = self._mask[self._unfinished]
        if not len(masks) or window == 1:
            return 0
        fewer = masks[:, ::-1].cumsum(axis=1) < window - 1
        most: int = masks.shape[1]
        return min(int(fewer.sum(axis=1).max()) + 1, most)
