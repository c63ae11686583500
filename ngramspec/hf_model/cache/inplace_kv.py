"""Dynamic cache layers that append new keys and values without copying the old ones.

A dynamic layer of transformers concatenates: every forward copies all keys and values of all layers
into new tensors. After a rollback it copies each head separately, because the rejected positions
are at the end of each head's memory. The copies take 1 to 2 % of a forward with 500 tokens of
context, and 5 to 9 % with 3000 (SmolLM2-135M, two cores). So during a generation, its layers keep
free memory after the positions that they hold. The values are the same, and each head's positions
are contiguous as before; only the stride between heads is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import torch

from ngramspec.hf_model.compat.layers import Update, replace_update

# Free positions in a layer's newly allocated memory: the greater of the two. Not tuned.
MIN_FREE_POSITIONS = 128
HELD_PER_FREE_POSITION = 16  # one free position for every 16 that the layer holds


class InPlace:
    """An ``update`` for a dynamic layer, in memory that belongs to this generation alone.

    The layer's earlier contents are copied there first, so nothing is written to tensors that a
    caller may hold. Under ``torch.compile``, and for states whose shape, dtype or device differs
    from those held, it calls the layer's original ``update``. A deep copy of the layer gets a
    separate ``InPlace``.

    The layer holds its ``update``, so the layer is referenced weakly. A cycle would keep a dropped
    cache in memory until the next full garbage collection.
    """

    def __init__(self, layer: Any) -> None:
        self._layer: Callable[[], Any] = ref(layer)
        self._replaced: Update | None = vars(layer).get("update")  # None: its class's ``update``
        self._keys: torch.Tensor | None = None  # memory, (batch, heads, capacity, size)
        self._values: torch.Tensor | None = None

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values of n positions, (batch, heads, n, size) each; return those of all."""
        layer = self._layer()
        held = (layer.keys, layer.values) if layer.is_initialized else (None, None)
        fits = _fits(held[0], key) and _fits(held[1], value)
        if torch.compiler.is_compiling() or not fits:
            original = self._replaced or partial(type(layer).update, layer)
            states: tuple[torch.Tensor, torch.Tensor] = original(key, value, *args, **kwargs)
            return states
        self._keys, keys = _append(self._keys, layer.keys, key)
        self._values, values = _append(self._values, layer.values, value)
        layer.keys, layer.values = keys, values
        return keys, values

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_layer": self._layer()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_layer": ref(state["_layer"])})


def grow_in_place(layer: Any) -> None:
    """Have a dynamic layer grow without copies, for any number of generations."""
    replace_update(layer, InPlace(layer).update)


def grows_in_place(layer: Any) -> bool:
    """Whether ``grow_in_place`` was called for a layer."""
    return isinstance(getattr(layer.update, "__self__", None), InPlace)


def close_up(layer: Any) -> None:
    """Free a layer's unused memory, which may hold rejected states."""
    if layer.is_initialized:
        layer.keys, layer.values = _alone(layer.keys), _alone(layer.values)


def _alone(states: torch.Tensor) -> torch.Tensor:
    alone = states.untyped_storage().nbytes() == states.numel() * states.element_size()
    return states if alone else states.clone(memory_format=torch.contiguous_format)


def _fits(held: torch.Tensor | None, new: torch.Tensor) -> bool:
    """Whether states can be appended to those held: (batch, heads, positions, size) both."""
    return (
        held is not None
        and held.ndim == new.ndim == 4
        and held.shape[:2] + held.shape[3:] == new.shape[:2] + new.shape[3:]
        and held.dtype == new.dtype
        and held.device == new.device
    )


def _append(
    memory: torch.Tensor | None, held: torch.Tensor, new: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Append ``new``, (batch, heads, n, size), to ``held``, (batch, heads, length, size).

    ``held`` is copied to new memory unless it is a view of ``memory``, and there is room. Return
    the memory, (batch, heads, capacity, size), and the view of its length + n positions.
    """
    length, whole = held.shape[2], held.shape[2] + new.shape[2]
    if memory is not None and memory.shape[0] > held.shape[0]:  # rows have left the batch
        memory = memory[: held.shape[0]]
    if (
        memory is None
        or memory.shape[2] < whole
        or held.data_ptr() != memory.data_ptr()
        or held.stride() != memory.stride()
    ):
        room = max(MIN_FREE_POSITIONS, whole // HELD_PER_FREE_POSITION)
        with torch.inference_mode(False):  # calls outside inference mode may write to it, too
            memory = held.new_empty((*held.shape[:2], whole + room, held.shape[3]))
        memory[:, :, :length] = held
    memory[:, :, length:whole] = new
    return memory, memory[:, :, :whole]
