"""The layers of a cache, and how they are rolled back: full attention is cut off.

``kinds.py`` has the layers other than dynamic ones. A dynamic layer of transformers concatenates:
every forward copies all its keys and values into new tensors, and after a rollback each head
separately, because the rejected positions are at the end of each head's memory. The copies take 1
to 2 % of a forward with 500 tokens of context, and 5 to 9 % with 3000 (SmolLM2-135M, two cores).
``InPlace`` therefore keeps free memory after the positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar
from weakref import ref

import torch
from torch.nn.functional import pad

from ngramspec.hf_model.compat import caches
from ngramspec.hf_model.compat.caches import Update, kind_of, replace_update, restore_update
from ngramspec.hf_model.compat.devices import Indices

# Free positions in a layer's newly allocated memory: the greater of the two.
MIN_FREE_POSITIONS = 128
HELD_PER_FREE_POSITION = 16  # one free position for every 16 that the layer holds

Needed = Callable[[int], int]  # from the size of a window, how many positions its layer needs


class CacheLayer:
    """A layer of transformers' cache, or a part of a hybrid one, and how it is rolled back.

    A new kind of layer is a subclass and a line in ``KINDS`` in ``kinds.py``. It needs ``compact``
    and ``keep_rows`` unless it has a ``gap_obstacle``.
    """

    attends: ClassVar[bool] = False  # whether it holds keys and values
    slides: ClassVar[bool] = False  # whether it forgets positions that have left its window
    static: ClassVar[bool] = False  # whether its memory has a fixed size
    indexed: ClassVar[bool] = False  # whether it has an index of its keys
    convolves: ClassVar[bool] = False  # whether it has a convolution or a recurrent state
    croppable: ClassVar[bool] = False  # whether its first n positions are those of n tokens alone
    gap_obstacle: str | None = None  # why it allows no gaps between positions; None: it does
    capacity: int | None = None  # positions that it can hold; None: no limit
    first: int = 0  # of the text's positions, the first that it holds
    held: int | None = None  # positions in a layer with a window; None: another, or it is empty
    reach: int | None = None  # positions that a static layer with a window holds at most

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        self.layer = layer  # transformers'; keys and values are (batch, heads, positions, size)

    def forgets(self, length: int) -> bool:
        """Whether it does not hold all of a text of ``length`` positions."""
        return False

    def record(self) -> None:
        """From the next forward on, keep what would be overwritten until the next ``truncate``."""

    def grow_in_place(self) -> None:
        """Grow without copies until ``release``, if it can."""

    def make_ragged(self) -> None:
        """Let rows have gaps between positions, until ``release``."""

    def truncate(self, count: int, needed: Needed) -> None:
        """Drop the last ``count`` >= 0 positions, and those that are not ``needed``."""
        raise NotImplementedError

    @classmethod
    def truncate_all(cls, layers: Sequence[Any], count: int, needed: Needed) -> None:
        """Truncate all layers of this kind in a cache, by default one by one."""
        for each in layers:
            each.truncate(count, needed)

    def truncate_to(self, length: int) -> None:
        """Drop all positions from ``length`` on, after an interrupted forward."""
        raise NotImplementedError

    def states(self) -> Iterator[torch.Tensor]:
        """Yield all existing states that have one entry for each row, (rows, ...)."""
        raise NotImplementedError

    def reorder(self, origins: Sequence[int], moves: Indices) -> None:
        """Let each row continue row ``origins[row]``; ``moves`` are those that change: to, from."""
        for states in self.states():
            to, source = moves(states.device)
            states[to] = states[source]

    def release(self, *, outlives: bool) -> None:
        """Slide and grow again as in the baseline; ``outlives``: the cache is used later."""
        raise NotImplementedError


class Attention(CacheLayer):
    """Full attention: rejected positions are cut off."""

    attends = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._update: tuple[Update | None] | None = None  # what ``replace_update`` returned

    @property
    def length(self) -> int:
        """Positions of the text that it has seen."""
        return int(self.layer.get_seq_length())

    @classmethod
    def lengths_of(cls, layers: Sequence[Attention]) -> list[int]:
        """The lengths of all layers of this kind in a cache."""
        return [each.length for each in layers]

    @property
    def has_keys(self) -> bool:
        """Whether it holds keys; one that shares another layer's may hold only an index."""
        return self.layer.keys is not None

    def stretch(self, length: int) -> None:
        """Return ``length`` keys and values, padded with zeros at the end, until ``release``."""
        self._replace(_stretching(self.layer.update, length))

    def _replace(self, update: Update) -> None:
        self._update = (replace_update(self.layer, update),)

    def truncate(self, count: int, needed: Needed) -> None:
        if count and self.has_keys:
            self._drop(count)

    def truncate_to(self, length: int) -> None:
        surplus = self.length - length
        if surplus > 0:
            self._drop(surplus)

    def _drop(self, count: int) -> None:
        self._keep(slice(None, -count))

    def _keep(self, positions: slice) -> None:
        layer = self.layer
        layer.keys, layer.values = layer.keys[:, :, positions], layer.values[:, :, positions]

    def states(self) -> Iterator[torch.Tensor]:
        if self.has_keys:
            yield from (self.layer.keys, self.layer.values)

    def compact(self, slots: torch.Tensor) -> None:
        """Keep some positions of each row: int64 (batch, kept) ``slots``, in their new order."""
        for name, kept in self._gathered(slots):
            states = getattr(self.layer, name)[:, :, : kept.shape[2]]
            states[:] = kept  # in place, to keep the layer's free memory
            setattr(self.layer, name, states)

    def _gathered(self, slots: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("keys", "values"):
            states = getattr(self.layer, name)
            index = slots[:, None, :, None].to(states.device)
            yield name, states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))

    def keep_rows(self, order: Sequence[int]) -> None:
        """Keep some rows of the batch; ``order[place] >= place`` is where a place's row was."""
        for name in ("keys", "values"):
            states = getattr(self.layer, name)
            for place, was in enumerate(order):
                if place != was:
                    states[place] = states[was]
            setattr(self.layer, name, states[: len(order)])

    def release(self, *, outlives: bool) -> None:
        """See CacheLayer. The spare memory of a cache that outlives the generation is freed."""
        if self._update is not None:
            restore_update(self.layer, *self._update)
            self._update = None
        if outlives and not grows_in_place(self.layer):
            close_up(self.layer)


class DynamicAttention(Attention):
    """Full attention and nothing else, in a layer that can grow without copies."""

    croppable = True

    @classmethod
    def truncate_all(cls, layers: Sequence[Attention], count: int, needed: Needed) -> None:
        """See CacheLayer. It runs in most steps, so each layer costs one call."""
        for each in layers:
            if count and each.layer.keys is not None:
                each.layer.crop(-count)

    def grow_in_place(self) -> None:
        """See CacheLayer. A layer that does so already is left as it is, also by ``release``."""
        if not grows_in_place(self.layer):
            self._replace(InPlace(self.layer).update)


def classes_of(name: str) -> tuple[type[CacheLayer], ...] | None:
    """Return the classes of a layer's parts, by the name of its class; None: it is not known."""
    if name == caches.DYNAMIC:
        return (DynamicAttention,)
    from ngramspec.hf_model.cache.kinds import KINDS  # many caches have dynamic layers only

    return KINDS.get(name)


def parts_of(cache: Any, *, recurrent: bool = False) -> list[CacheLayer]:
    """Return the layers of a cache of transformers, or the parts of hybrid ones."""
    known = [(layer, classes_of(kind_of(layer)) or ()) for layer in getattr(cache, "layers", ())]
    return [kind(layer, recurrent=recurrent) for layer, kinds in known for kind in kinds]


def _stretching(update: Update, length: int) -> Update:
    def stretched(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        states = update(*args, **kwargs)  # (batch, heads, positions, size) each
        return tuple(pad(each, (0, 0, 0, length - each.shape[2])) for each in states)

    return stretched


class InPlace:
    """An ``update`` for a dynamic layer, in memory that belongs to this generation alone.

    The layer's earlier contents are copied there first, so nothing is written to tensors that a
    caller may hold. The layer holds its ``update``, so it is referenced weakly: a cycle would keep
    a dropped cache in memory.
    """

    def __init__(self, layer: Any) -> None:
        self._layer: Callable[[], Any] = ref(layer)
        self._replaced: Update | None = vars(layer).get("update")  # None: its class's ``update``
        # Of keys and values, (batch, heads, capacity, size); None: it has appended nothing to it.
        self.memory: tuple[torch.Tensor, torch.Tensor] | None = None

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
        first, second = self.memory or (None, None)
        first, keys = _append(first, layer.keys, key)
        second, values = _append(second, layer.values, value)
        self.memory, layer.keys, layer.values = (first, second), keys, values
        return keys, values

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_layer": self._layer()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_layer": ref(state["_layer"])})


def grows_in_place(layer: Any) -> bool:
    """Whether a layer's spare memory is kept for the keys and values of later forwards."""
    return isinstance(getattr(layer.update, "__self__", None), InPlace)


def close_up(layer: Any) -> None:
    """Free a layer's unused memory, which may hold rejected states."""
    if layer.is_initialized and layer.keys is not None:
        layer.keys, layer.values = alone(layer.keys), alone(layer.values)


def alone(states: torch.Tensor) -> torch.Tensor:
    """Return states that keep no other memory alive: these, or a copy."""
    whole = states.untyped_storage().nbytes() == states.numel() * states.element_size()
    return states if whole else states.clone(memory_format=torch.contiguous_format)


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
    """Append (batch, heads, n, size) to ``held``, in ``memory`` if it is there and has room."""
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
