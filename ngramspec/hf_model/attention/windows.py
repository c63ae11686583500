"""Attention windows and chunks: which masks a model takes, and masks made by position in the text.

transformers counts windows and chunks in slots of the cache. That fails if rows have gaps between
their slots, or if siblings of a tree share a position. Here they are counted by a token's position
in its text, from where the row's padding ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from ngramspec.hf_model.attention.tree_attention import Trees, tree_positions

Masks = torch.Tensor | dict[str, torch.Tensor]  # one for all layers, or one for each type of layers


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a layer attends; without limits, to all positions before its own."""

    window: int | None = None  # to itself and to the ``window - 1`` positions before it
    chunk: int | None = None  # to the positions of its own chunk of this size

    @property
    def limit(self) -> int | None:
        """Maximum number of positions that a position attends to; None: no limit."""
        return self.chunk if self.window is None else self.window

    def within(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Return which keys the limits include, regardless of their order and of padding.

        ``queries``, int64 (rows, width), and ``keys``, int64 (rows, keys), are positions in the
        text. The result is bool (rows, 1, width, keys).
        """
        one, other = queries[:, None, :, None], keys[:, None, None, :]
        if self.window is not None:
            return other > one - self.window
        assert self.chunk is not None
        return one.div(self.chunk, rounding_mode="floor") == other.div(
            self.chunk, rounding_mode="floor"
        )


KINDS = {
    "full_attention": lambda config: Reach(),
    "sliding_attention": lambda config: Reach(window=config.sliding_window),
    "chunked_attention": lambda config: Reach(chunk=config.attention_chunk_size),
}


@dataclass(frozen=True, slots=True)
class Windows:
    """The masks of a model that has layers with windows or chunks."""

    reaches: Mapping[str, Reach]  # by type of layers; by "" if it takes one mask for all layers
    known: bool = True  # whether all types of its layers are known
    layers: tuple[str, ...] = ()  # the type of each; empty if it takes one mask for all layers

    @property
    def shortest(self) -> int:
        """The least limit: a text that is no longer has full attention in all layers."""
        limits = (each.limit for each in self.reaches.values())
        return min((each for each in limits if each is not None), default=0)

    def masks(
        self, mask: torch.Tensor, past: torch.Tensor, queries: torch.Tensor, held: int | None
    ) -> Masks:
        """Return the mask or masks that the model takes.

        Args:
            mask: bool (rows, 1, width, keys), without windows and chunks. The keys are those of
                the cache's slots, of the forward, and any number of unused ones.
            past: int64 (rows or 1, slots), positions in the text of the cache's slots.
            queries: int64 (rows or 1, width), likewise of the forward.
            held: number of the last keys that layers with limits hold, and that their masks have;
                None: all.
        """
        rows, made = max(len(past), len(queries)), {}
        keys = torch.cat((past.expand(rows, -1), queries.expand(rows, -1)), dim=1)
        keys = pad(keys, (0, mask.shape[-1] - keys.shape[1]))
        for kind, reach in self.reaches.items():
            if reach.limit is None:
                made[kind] = mask
                continue
            first = 0 if held is None else mask.shape[-1] - held
            made[kind] = mask[..., first:] & reach.within(queries, keys[:, first:])
        return made if self.layers else made[""]


def windows_of(config: Any) -> Windows | None:
    """Return the windows of a text model's config; None: it has none.

    A model whose config has ``layer_types`` takes a mask for each type, any other model takes one.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        if not any("sliding" in kind or "chunked" in kind for kind in kinds):
            return None
        known = {kind: KINDS[kind](config) for kind in dict.fromkeys(kinds) if kind in KINDS}
        return Windows(known, known=KINDS.keys() >= set(kinds), layers=tuple(kinds))
    if getattr(config, "sliding_window", None) is not None:
        return Windows({"": Reach(window=config.sliding_window)})
    if getattr(config, "attention_chunk_size", None) is not None:
        return Windows({"": Reach(chunk=config.attention_chunk_size)})
    return None


def query_positions(
    last: torch.Tensor, trees: Trees, lengths: Sequence[int], width: int
) -> torch.Tensor:
    """Return the positions in the text of a forward's tokens, int64 (rows or 1, width).

    ``width`` includes padding after the longest draft. Without trees, all drafts are chains. The
    other arguments are those of ``tree_positions``.
    """
    steps = torch.arange(width, device=last.device)
    if not trees:
        return last + steps
    queries = tree_positions(last, trees, lengths)
    return queries[:, steps.clamp(max=queries.shape[1] - 1)]


def added(masks: Masks, dtype: torch.dtype) -> Masks:
    """Return masks of bools as eager attention adds them to its scores: 0 or the lowest value."""
    if isinstance(masks, dict):
        return {kind: _added(each, dtype) for kind, each in masks.items()}
    return _added(masks, dtype)


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, torch.finfo(dtype).min)
