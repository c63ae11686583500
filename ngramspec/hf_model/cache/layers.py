"""The kinds of cache layers, and how each is rolled back.

Full attention is cut off. A dynamic layer with a window holds the last positions only, and a
convolution its last inputs only. To allow positions to be rejected, both can record
(``activate_past_recording``): they then drop nothing until they are told to. A recurrent state has
no positions that could be cut off (``copies.py``).

A dynamic layer of transformers concatenates: every forward copies all its keys and values into new
tensors, and after a rollback each head separately, because the rejected positions are at the end of
each head's memory. The copies take 1 to 2 % of a forward with 500 tokens of context, and 5 to 9 %
with 3000 (SmolLM2-135M, two cores). ``InPlace`` therefore keeps free memory after the positions.
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
from ngramspec.hf_model.devices import Indices, indices, on_host

# Free positions in a layer's newly allocated memory: the greater of the two.
MIN_FREE_POSITIONS = 128
HELD_PER_FREE_POSITION = 16  # one free position for every 16 that the layer holds

NO_WINDOW = 1 << 40  # positions: longer than any text

Needed = Callable[[int], int]  # from the size of a window, how many positions its layer needs


class CacheLayer:
    """A layer of transformers' cache, or a part of a hybrid one, and how it is rolled back.

    A new kind of layer is a subclass and a line in ``KINDS``. It needs
    ``compact`` and ``keep_rows`` unless it has a ``gap_obstacle``.
    """

    attends: ClassVar[bool] = False  # whether it holds keys and values
    slides: ClassVar[bool] = False  # whether it forgets positions that have left its window
    indexed: ClassVar[bool] = False  # whether it has an index of its keys
    convolves: ClassVar[bool] = False  # whether it has a convolution or a recurrent state
    croppable: ClassVar[bool] = False  # whether its first n positions are those of n tokens alone
    gap_obstacle: str | None = None  # why it allows no gaps between positions; None: it does
    capacity: int | None = None  # positions that it can hold; None: no limit
    first: int = 0  # of the text's positions, the first that it holds

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        self.layer = layer  # transformers'; keys and values are (batch, heads, positions, size)

    @classmethod
    def supports(cls, layer: Any) -> bool:
        """Whether a layer of the installed transformers can be rolled back."""
        return True

    def forgets(self, length: int) -> bool:
        """Whether it does not hold all of a text of ``length`` positions."""
        return False

    def resize(self, capacity: int) -> None:
        """Make room for ``capacity`` positions, if it is empty and has a limit."""

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
        """Truncate all layers of this kind in a cache."""
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
        self._stretched = False

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
        self._stretched = True

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
            if outlives and not self._stretched:
                close_up(self.layer)
        self._update, self._stretched = None, False


class DynamicAttention(Attention):
    """Full attention and nothing else, in a layer that can grow without copies."""

    croppable = True

    def _drop(self, count: int) -> None:
        self.layer.crop(-count)

    def grow_in_place(self) -> None:
        """See CacheLayer. A layer that does so already is left as it is, also by ``release``."""
        if not isinstance(getattr(self.layer.update, "__self__", None), InPlace):
            self._replace(InPlace(self.layer).update)


class IndexedAttention(Attention):
    """Full attention to keys that an index selects. The index is cropped with the keys."""

    indexed = True
    gap_obstacle = "attention with an index of its keys"

    def truncate(self, count: int, needed: Needed) -> None:
        if count:
            self.layer.crop(-count)

    def truncate_to(self, length: int) -> None:
        """See CacheLayer.

        A forward adds keys and their index one after the other, in an order that depends on the
        model. After an interrupt in between, their lengths differ.
        """
        layer, places = self.layer, getattr(self.layer, "indexer_position_ids", None)
        if self.has_keys:
            self._keep(slice(length))
        if layer.indexer_keys is not None:
            layer.indexer_keys = layer.indexer_keys[:, :length]
        if places is not None:
            layer.indexer_position_ids = places[..., :length]

    def states(self) -> Iterator[torch.Tensor]:
        yield from super().states()
        if self.layer.indexer_keys is not None:
            yield self.layer.indexer_keys  # (rows, length, size)

    def reorder(self, origins: Sequence[int], moves: Indices) -> None:
        super().reorder(origins, moves)
        places = getattr(self.layer, "indexer_position_ids", None)
        if places is not None:  # (dimensions, rows, length), maybe expanded from fewer rows
            order = indices(origins)(places.device)
            self.layer.indexer_position_ids = places.index_select(1, order)


class StaticAttention(Attention):
    """Full attention in memory of a fixed size. Positions from the length on are masked."""

    @property
    def capacity(self) -> int:  # type: ignore[override]
        return int(self.layer.get_max_length())

    @classmethod
    def lengths_of(cls, layers: Sequence[Attention]) -> list[int]:
        """See Attention. The lengths are on the device, and one host sync reads them all."""
        first, others = on_host(*(each.layer.cumulative_length for each in layers))
        return [int(each.item()) for each in (first, *others) if each is not None]

    def resize(self, capacity: int) -> None:
        self.layer.max_cache_len = capacity
        _allocate_like(self.layer, self.layer)

    @classmethod
    def truncate_all(cls, layers: Sequence[Any], count: int, needed: Needed) -> None:
        """See CacheLayer.

        The lengths are changed in place, because CUDA graphs hold their addresses. A cache that was
        made in inference mode allows this only in that mode.
        """
        if count:
            with torch.inference_mode():
                torch._foreach_sub_([each.layer.cumulative_length for each in layers], count)

    def truncate(self, count: int, needed: Needed) -> None:
        self.truncate_all([self], count, needed)

    def truncate_to(self, length: int) -> None:
        self.truncate_all([self], max(self.length - length, 0), lambda window: 0)


class WindowAttention(Attention):
    """Attention to the last positions, of which it may hold more than the window."""

    slides = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._window = int(layer.sliding_window)

    @property
    def held(self) -> int | None:
        """Positions that it holds; None before its first forward."""
        return int(self.layer.keys.shape[2]) if self.layer.is_initialized else None

    @property
    def first(self) -> int:  # type: ignore[override]
        return int(self.layer.cumulative_length) - (self.held or 0)

    def forgets(self, length: int) -> bool:
        return length >= self._window

    def record(self) -> None:
        self.layer.activate_past_recording()

    def make_ragged(self) -> None:
        """See CacheLayer. It returns all that it holds; call it after the prefill."""
        self.layer.sliding_window = NO_WINDOW

    def truncate(self, count: int, needed: Needed) -> None:
        """See CacheLayer. If one less than the window is needed, it is the layer's ``crop``."""
        self._crop(count, needed(self._window))

    def _crop(self, count: int, keep: int) -> None:
        if self.layer.is_initialized:
            end = self.layer.keys.shape[2] - count
            self._keep(slice(max(end - keep, 0), end))
            self.layer.cumulative_length -= count

    def truncate_to(self, length: int) -> None:
        """See CacheLayer. A prefill in chunks drops what leaves the window, as the baseline."""
        layer = self.layer
        if length == 0:  # a crop may need what the layer no longer holds
            layer.keys = layer.values = None
            layer.is_initialized, layer.cumulative_length = False, 0
        elif layer.record_past:
            self._crop(max(self.length - length, 0), length)

    def compact(self, slots: torch.Tensor) -> None:
        """See Attention. What it no longer holds is masked, or outside every row's window."""
        gone, kept = self.first, slots.shape[1]
        self.layer.cumulative_length = kept
        own = (slots[:, max(kept - self._window + 1, 0) :] - gone).clamp(min=0)
        for name, states in self._gathered(own):
            setattr(self.layer, name, states)

    def release(self, *, outlives: bool) -> None:
        super().release(outlives=outlives)
        self.layer.sliding_window = self._window
        self.layer.record_past = False


class LinearAttention(CacheLayer):
    """Convolutions, and recurrent states if the model is ``recurrent``, each in a dict by an index.

    The inputs of a convolution are (batch, channels, positions), or None before the first forward.
    """

    convolves = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._recurrent = recurrent  # its states are rolled back by a Checkpoint
        self.gap_obstacle = "a recurrent state" if recurrent else "convolutions over positions"

    @classmethod
    def supports(cls, layer: Any) -> bool:
        return hasattr(layer, "activate_past_recording") and isinstance(layer.conv_states, dict)

    def forgets(self, length: int) -> bool:
        return True

    def record(self) -> None:
        if not self._recurrent:
            self.layer.activate_past_recording()

    def truncate(self, count: int, needed: Needed) -> None:
        """See CacheLayer. The checkpoint restores inputs of positions that are dropped.

        A hybrid layer that records for its window records the convolution's inputs, too.
        """
        if not self._recurrent:
            self._cut(count)
        elif self.layer.record_past:
            self._cut(0)

    def _cut(self, count: int) -> None:
        layer = self.layer
        for at, inputs in layer.conv_states.items():
            if inputs is not None:
                stay = inputs[..., : inputs.shape[-1] - count]
                layer.conv_states[at] = stay[..., -layer.conv_kernel_size[at] :]

    def truncate_to(self, length: int) -> None:
        """See CacheLayer. Layers that do not record overwrite their inputs, as in the baseline."""
        layer = self.layer
        for at, inputs in () if self._recurrent else layer.conv_states.items():
            if not length:
                layer.has_previous_state[at] = layer.is_conv_states_initialized[at] = False
                layer.conv_states[at] = None
            elif layer.record_past and layer.is_conv_states_initialized[at]:
                layer.conv_states[at] = inputs[..., : layer.conv_kernel_size[at]]

    def states(self) -> Iterator[torch.Tensor]:
        for states in (self.layer.conv_states, self.layer.recurrent_states):
            yield from (each for each in states.values() if each is not None)

    def release(self, *, outlives: bool) -> None:
        """See CacheLayer. Calls outside inference mode may write to a cache that outlives it.

        A hybrid layer that recorded for its window made new inputs of the convolution, too.
        """
        if not self._recurrent:
            self.layer.record_past = False
        for at, inputs in self.layer.conv_states.items() if outlives else ():
            if inputs is not None and (inputs.is_inference() or not self._recurrent):
                with torch.inference_mode(False):
                    self.layer.conv_states[at] = inputs.clone()


# The classes of a layer's parts, by the name of transformers' class.
KINDS: dict[str, tuple[type[CacheLayer], ...]] = {
    caches.DYNAMIC: (DynamicAttention,),
    caches.INDEXED: (IndexedAttention,),
    caches.SLIDING: (WindowAttention,),
    caches.STATIC: (StaticAttention,),
    caches.LINEAR: (LinearAttention,),
    caches.LINEAR_AND_FULL: (Attention, LinearAttention),
    caches.LINEAR_AND_SLIDING: (WindowAttention, LinearAttention),
    caches.EMPTY: (),
}


def parts_of(cache: Any, *, recurrent: bool = False) -> list[CacheLayer]:
    """Return the layers of a cache of transformers, or the parts of hybrid ones."""
    layers = getattr(cache, "layers", ())
    known = [(layer, KINDS.get(kind_of(layer), ())) for layer in layers]
    return [kind(layer, recurrent=recurrent) for layer, kinds in known for kind in kinds]


def states_of(layer: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the inputs of a linear layer's convolutions, and its recurrent states."""
    return layer.conv_states, layer.recurrent_states


def widen_static(cache: Any, capacity: int) -> None:
    """Replace layers with windows in an empty static cache by ones that overwrite nothing."""
    # All layers get one length, because transformers makes their masks for the first layer's.
    full = [layer.max_cache_len for layer in cache.layers if kind_of(layer) == caches.STATIC]
    capacity = max(full, default=capacity)
    for at, layer in enumerate(cache.layers):
        if kind_of(layer) == caches.STATIC_SLIDING:
            cache.layers[at] = caches.new_static_layer(capacity)
            _allocate_like(cache.layers[at], layer)


def _allocate_like(layer: Any, other: Any) -> None:
    """Allocate an empty static layer if another one is allocated (before a prefill in chunks)."""
    if other.is_initialized:
        layer.lazy_initialization(other.keys[:, :, :0], other.values[:, :, :0])


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
