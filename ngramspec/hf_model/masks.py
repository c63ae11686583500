"""Masks and positions of forwards over drafts.

A forward's position 0 is the last committed token, and position i + 1 is node i of the draft. A
node attends to the committed text, to its ancestors and to itself, and its depth determines its
position in the text (SpecInfer, Miao et al. 2024, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
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
