"""Caches of several generations in the rows of shared tensors, so that one attention serves all.

A cache enters with a copy of its keys and values. From then on its layers hold views of a row, so
all that cuts them off or moves them works as before. What appends to them outside of joint forwards
copies them out, and the cache enters again at its next joint forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import numpy as np
import torch

from ngramspec.hf_model.cache.layers import (
    HELD_PER_FREE_POSITION,
    MIN_FREE_POSITIONS,
    alone,
    grows_in_place,
)
from ngramspec.hf_model.compat import caches
from ngramspec.hf_model.compat.devices import Indices, indices

States = tuple[torch.Tensor, torch.Tensor]  # keys and values, (rows, heads, positions, size) each
ALONE = 16  # positions that a separate attention for one cache costs more than its own; not tuned


class SharedRows:
    """The memory of the caches of a model's joint forwards. Not thread-safe.

    Rows and positions are reallocated when they do not suffice, or when less than half are used.
    """

    def __init__(self) -> None:
        self._layers: list[States] = []
        self._owners: list[Any] = []  # of each row, weak references to caches; None: it is free

    def placed(self, owners: Sequence[Any], new: Sequence[int]) -> Placement | None:
        """Let each cache have a row with room for ``new`` more positions; None: they cannot share.

        Each is a cache of transformers with one row.
        """
        if not all(self._holds(each) or _enters(each) for each in owners):
            return None
        lengths = [int(each.get_seq_length()) for each in owners]
        most = max(map(sum, zip(lengths, new, strict=True)))
        held = [None if each is None else each() for each in self._owners]
        self._owners = [None if each is None else ref(each) for each in held]
        missing = [each for each in owners if not any(each is other for other in held)]
        alive = sum(each is not None for each in held) + len(missing)
        capacity = self._layers[0][0].shape[2] if self._layers else 0
        longest = max([most, *(int(each.get_seq_length()) for each in held if each is not None)])
        spare = MIN_FREE_POSITIONS + longest // HELD_PER_FREE_POSITION
        sparse = len(held) > 2 * alive or capacity > 2 * (longest + spare)
        if sparse or alive > len(held) or most > capacity:
            try:
                self._reallocate(owners[0], alive, longest + spare)
            except BaseException:  # such as an out-of-memory error
                self._layers, self._owners = [], []  # each cache keeps the memory that it views
                raise
        for each in missing:
            self._owners[self._owners.index(None)] = ref(each)
        rows = [self._row(each) for each in owners]
        for row, each in zip(rows, owners, strict=True):
            if any(each is new for new in missing) or not self._holds(each):
                self._enter(row, each)
        return Placement(self._layers, rows, lengths, list(new))

    def leave(self, owner: Any) -> None:
        """Copy a cache's states out of its row, and free the row."""
        row = self._row(owner)
        if row is None:
            return
        try:
            for layer in owner.layers:
                layer.keys, layer.values = alone(layer.keys), alone(layer.values)
        finally:
            self._owners[row] = None
            if not any(self._owners):
                self._layers, self._owners = [], []

    def _row(self, owner: Any) -> Any:
        found = (at for at, each in enumerate(self._owners) if each is not None)
        return next((at for at in found if self._owners[at]() is owner), None)

    def _holds(self, owner: Any) -> bool:
        """Whether a cache's states are in its row. If they have left it, its first layer's have."""
        return self._row(owner) is not None and owner.layers[0].update.__self__.memory is None

    def _reallocate(self, like: Any, rows: int, positions: int) -> None:
        """Make rows of ``positions``, and move what is in the present ones there."""
        kept = [at for at, each in enumerate(self._owners) if each is not None]
        owners = [self._owners[at]() for at in kept]
        before: list[Any] = self._layers or [None] * len(like.layers)
        for at, layer in enumerate(like.layers):
            made = []
            for number, states in enumerate((layer.keys, layer.values)):
                shape = (rows, states.shape[1], positions, states.shape[3])
                with torch.inference_mode(False):  # calls outside inference mode may write to it
                    memory = states.new_zeros(shape)  # masked positions must not hold NaN
                if before[at] is not None:
                    old = before[at][number]
                    held = min(positions, old.shape[2])
                    for to, row in enumerate(kept):
                        memory[to, :, :held] = old[row, :, :held]
                made.append(memory)
            for to, owner in enumerate(owners):
                own = owner.layers[at]
                if own.update.__self__.memory is None:
                    length = own.keys.shape[2]
                    own.keys, own.values = (each[to : to + 1, :, :length] for each in made)
            if at < len(self._layers):
                self._layers[at] = (made[0], made[1])  # frees the layer's old memory
            else:
                self._layers.append((made[0], made[1]))
        self._owners = [*map(ref, owners), *[None] * (rows - len(owners))]

    def _enter(self, row: int, owner: Any) -> None:
        """Copy what a cache holds to its row."""
        for states, layer in zip(self._layers, owner.layers, strict=True):
            length = layer.keys.shape[2]
            views = [each[row : row + 1, :, :length] for each in states]
            views[0][:], views[1][:] = layer.keys, layer.values
            layer.keys, layer.values = views
            layer.update.__self__.memory = None


def _enters(owner: Any) -> bool:
    """Whether a cache has only layers of one row that hold all positions, none of them empty.

    They must grow in place, which shows whether they have left their row.
    """
    return all(
        caches.kind_of(layer) == caches.DYNAMIC
        and grows_in_place(layer)
        and layer.is_initialized
        and layer.keys is not None
        and layer.keys.ndim == layer.values.ndim == 4
        and len(layer.keys) == 1
        for layer in owner.layers
    )


class Placement:
    """The rows and positions of one joint forward.

    Args:
        layers: all rows' keys and values in each layer.
        rows: of each cache.
        lengths: positions in each cache before the forward.
        new: positions that the forward adds to each.
    """

    def __init__(
        self, layers: list[States], rows: list[int], lengths: list[int], new: list[int]
    ) -> None:
        self._layers, self._rows, self._lengths, self._new = layers, rows, lengths, new
        self.used = 1 + max(rows)  # rows that the attention reads
        self.width = min(sorted({*new}), key=self._cost)
        begin, to, together, back = 0, [], np.zeros((self.used, self.width), np.int64), []
        self.apart: list[tuple[int, slice]] = []  # caches with a separate attention, and positions
        for at, (row, length, count) in enumerate(zip(rows, lengths, new, strict=True)):
            to += [(row, length + each) for each in range(count)]
            if count > self.width:
                self.apart.append((at, slice(begin, begin + count)))
                back += [0] * count
            else:
                together[row, :count] = range(begin, begin + count)
                back += [row * self.width + each for each in range(count)]
            begin += count
        self._to: Indices = indices([*zip(*to, strict=True)])
        self._together, self._back = indices(together.ravel()), indices(back)
        self.length = max(length + count for length, count in zip(lengths, new, strict=True))

    def _cost(self, width: int) -> int:
        """About what an attention over ``width`` positions of each row costs, and wider ones."""
        return self.used * width + sum(ALONE + each for each in self._new if each > width)

    def store(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write new states of all caches, (1, heads, total, size) each, to their rows."""
        row, position = self._to(key.device)
        for memory, states in zip(self._layers[layer], (key, value), strict=True):
            memory[row, :, position] = states[0].transpose(0, 1)

    def states(self, layer: int) -> States:
        """Keys and values of all rows up to the longest length, (used, heads, length, size)."""
        keys, values = self._layers[layer]
        return keys[: self.used, :, : self.length], values[: self.used, :, : self.length]

    def states_of(self, layer: int, at: int) -> States:
        """Keys and values of one cache, with its new positions."""
        row, end = self._rows[at], self._lengths[at] + self._new[at]
        keys, values = self._layers[layer]
        return keys[row : row + 1, :, :end], values[row : row + 1, :, :end]

    def spread(self, query: torch.Tensor) -> torch.Tensor:
        """Lay queries, (1, heads, total, size), out by rows, (used, heads, width, size)."""
        chosen = query[0].index_select(1, self._together(query.device))
        return chosen.reshape(len(chosen), self.used, self.width, -1).transpose(0, 1)

    def gathered(self, found: torch.Tensor) -> torch.Tensor:
        """Return results by rows, (used, width, heads, size), as (1, total, heads, size)."""
        return found.flatten(0, 1).index_select(0, self._back(found.device))[None]

    def mask(self, masks: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor:
        """The positions that each position attends to, bool (used, 1, width, length).

        ``masks``: of each cache, see ``ForwardShare.masks``.
        """
        ends = [0] * self.used
        for row, length in zip(self._rows, self._lengths, strict=True):
            ends[row] = length + 1
        places = torch.arange(self.length, device=device)
        made = places < indices(ends)(device)[:, None, None]
        made = made.repeat(1, self.width, 1)
        for row, length, count, mask in zip(
            self._rows, self._lengths, self._new, masks, strict=True
        ):
            if mask is not None and count <= self.width:
                made[row, :count] = False
                made[row, :count, : length + count] = mask[0, 0]
        return made[:, None]

    def extend(self, owners: Sequence[Any]) -> None:
        """Let the caches hold the new positions, in every layer."""
        for at, owner in enumerate(owners):
            for number, layer in enumerate(owner.layers):
                layer.keys, layer.values = self.states_of(number, at)
