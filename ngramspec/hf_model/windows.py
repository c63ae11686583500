"""Windows and chunks: how far back each layer of a model attends, and its masks.

transformers counts them in slots of the cache, which fails if rows have gaps or siblings share a
position. Here they are counted by positions in the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ngramspec.hf_model.masks import Masks, Trees, tree_positions


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a layer attends; without limits, to all positions before its own."""

    window: int | None = None  # to itself and to the ``window - 1`` positions before it
    chunk: int | None = None  # positions of a chunk; a query attends only within its chunk

    @property
    def limit(self) -> int | None:
        """Maximum number of positions that a position attends to; None: no limit."""
        return min((each for each in (self.window, self.chunk) if each is not None), default=None)

    def within(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which keys are included, by text positions, bool (rows, 1, width, keys)."""
        one, other = queries[:, None, :, None], keys[:, None, None, :]
        if self.chunk is None:
            assert self.window is not None
            return other > one - self.window
        first, second = (each.div(self.chunk, rounding_mode="floor") for each in (one, other))
        same = first == second
        return same if self.window is None else same & (other > one - self.window)


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

    def shortened(self, held: int) -> Windows:
        """Return the windows of layers that hold at most ``held`` positions."""
        reaches = {
            kind: replace(each, window=held) if (each.limit or 0) > held else each
            for kind, each in self.reaches.items()
        }
        return replace(self, reaches=reaches)

    def masks(self, mask: Tensor, past: Tensor, queries: Tensor, held: int | None) -> Masks:
        """Return the mask or masks that the model takes, from the ``mask`` without windows.

        ``past`` and ``queries``, int64 (rows or 1, n), are the text positions of the cache's slots
        and of the forward. Layers with limits hold the last ``held`` keys; None: all.
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

    def queries(self, last: Tensor, trees: Trees, lengths: Sequence[int], width: int) -> Tensor:
        """Return the text positions of a forward's tokens, int64 (rows or 1, width)."""
        steps = torch.arange(width, device=last.device)
        if not trees:
            return last + steps
        queries = tree_positions(last, trees, lengths)
        return queries[:, steps.clamp(max=queries.shape[1] - 1)]
