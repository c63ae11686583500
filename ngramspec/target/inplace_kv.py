"""Growing cache layers that write new keys and values behind the old, without copying these.

A dynamic layer of transformers concatenates: every forward copies all keys and values of all layers
into new tensors, and does so piecemeal behind a rollback, as what was cut off is not the end of
their memory but of each head's. With 3000 tokens that is 5 to 9 % of a forward, with 500 1 to 2 %
(SmolLM2-135M, two cores). So while a generation runs its layers keep room behind what they hold.
The numbers are the same, and each head's positions lie side by side as before; heads lie further
apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ROOM = 128  # positions of room at least, when a layer's memory is made anew,
SHARE = 16  # and one for so many that it holds


class InPlace:
    """An ``update`` for a dynamic layer, in memory that is this generation's alone.

    What the layer held before is copied into it first, so nothing is written to tensors that a
    caller may have. Under ``torch.compile``, and for states of another kind than those held, it is
    the layer's own. A copy of the layer gets one of its own with it.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._original: Callable[..., tuple[torch.Tensor, torch.Tensor]] = layer.update
        self._keys, self._values = _Memory(), _Memory()

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As the layer's: add states of the next positions, return those of all."""
        layer = self._layer
        held = (layer.keys, layer.values) if layer.is_initialized else (None, None)
        fits = _fits(held[0], key) and _fits(held[1], value)
        if torch.compiler.is_compiling() or not fits:
            return self._original(key, value, *args, **kwargs)
        grown = self._keys.append(held[0], key), self._values.append(held[1], value)
        layer.keys, layer.values = grown
        return grown


def close_up(layer: Any) -> None:
    """Let go of the room behind what a layer holds, and of what was rejected and lies there."""
    if layer.is_initialized:
        layer.keys, layer.values = _alone(layer.keys), _alone(layer.values)


def _alone(states: torch.Tensor) -> torch.Tensor:
    alone = states.untyped_storage().nbytes() == states.numel() * states.element_size()
    return states if alone else states.clone(memory_format=torch.contiguous_format)


def _fits(held: torch.Tensor | None, new: torch.Tensor) -> bool:
    """Whether states can stand behind those held: (batch, heads, positions, size) both."""
    return (
        held is not None
        and held.ndim == new.ndim == 4
        and held.shape[:2] + held.shape[3:] == new.shape[:2] + new.shape[3:]
        and held.dtype == new.dtype
        and held.device == new.device
    )


class _Memory:
    """Where one layer's keys, or its values, lie."""

    def __init__(self) -> None:
        self._all: torch.Tensor | None = None  # (batch, heads, capacity, size)

    def append(self, held: Any, new: torch.Tensor) -> torch.Tensor:
        """``held`` and ``new`` one behind the other: a view of the memory.

        Args:
            held: such a view, cut or not; anything else is copied.
            new: the states of the next positions.
        """
        length, whole = held.shape[2], held.shape[2] + new.shape[2]
        memory = self._all
        if (
            memory is None
            or memory.shape[2] < whole
            or held.data_ptr() != memory.data_ptr()
            or held.stride() != memory.stride()
        ):
            room = max(ROOM, whole // SHARE)
            memory = held.new_empty((*held.shape[:2], whole + room, held.shape[3]))
            memory[:, :, :length] = held
            self._all = memory
        memory[:, :, length:whole] = new
        return memory[:, :, :whole]
