"""The kinds of cache layers other than dynamic full attention, and how each is rolled back.

A dynamic layer with a window holds the last positions only, and a convolution its last inputs only.
To allow positions to be rejected, both can record (``activate_past_recording``): they then drop
nothing until they are told to. A recurrent state has no positions that could be cut off
(``copies.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ngramspec.hf_model.cache.layers import Attention, CacheLayer, Needed, alone
from ngramspec.hf_model.compat import caches
from ngramspec.hf_model.compat.caches import kind_of
from ngramspec.hf_model.compat.devices import Indices, indices, on_host
from ngramspec.hf_model.compat.factories import new_static_layer

NO_WINDOW = 1 << 40  # positions: longer than any text


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

    static = True

    @property
    def capacity(self) -> int:  # type: ignore[override]
        return int(self.layer.get_max_length())

    @classmethod
    def lengths_of(cls, layers: Sequence[Attention]) -> list[int]:
        """See Attention. The lengths are on the device, and one host sync reads them all."""
        first, others = on_host(*(each.layer.cumulative_length for each in layers))
        return [int(each.item()) for each in (first, *others) if each is not None]

    @classmethod
    def truncate_all(cls, layers: Sequence[Any], count: int, needed: Needed) -> None:
        """See CacheLayer.

        The lengths are changed in place, because CUDA graphs hold their addresses. A cache that was
        made in inference mode allows this only in that mode.
        """
        if count:
            with torch.inference_mode():
                torch._foreach_sub_([each.layer.cumulative_length for each in layers], count)

    def truncate_to(self, length: int) -> None:
        self.truncate_all([self], max(self.length - length, 0), lambda window: 0)

    @torch.inference_mode()
    def compact(self, slots: torch.Tensor) -> None:
        kept = slots.shape[1]
        for name, states in self._gathered(slots):
            getattr(self.layer, name)[:, :, :kept] = states
        self.layer.cumulative_length.fill_(kept)


class StaticWindow(Attention):
    """Attention to the last positions in memory of a fixed size, until the prefill has run.

    Forwards overwrite the oldest positions, so later ones use layers with room (``Room``).
    """

    static = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._before: dict[str, Any] = {}  # copied by ``record``, at a length
        self._recorded = 0

    @property
    def reach(self) -> int:  # type: ignore[override]
        return int(self.layer.max_cache_len)

    def record(self) -> None:
        self._recorded = self.length
        for name, value in vars(self.layer).items():
            self._before[name] = value.clone() if isinstance(value, torch.Tensor) else value

    def truncate_to(self, length: int) -> None:
        """See CacheLayer. If it has no copy of that length, it is as the baseline leaves it."""
        if length == 0 and self.layer.is_initialized:
            with torch.inference_mode():
                self.layer.reset()
        elif length == self._recorded:
            vars(self.layer).update(self._before)


class WindowAttention(Attention):
    """Attention to the last positions, of which it may hold more than the window."""

    slides = True

    def __init__(self, layer: Any, *, recurrent: bool = False) -> None:
        super().__init__(layer)
        self._window = int(layer.sliding_window)

    @property
    def held(self) -> int | None:  # type: ignore[override]
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
        """See CacheLayer. Calls outside inference mode may write to a cache that outlives it."""
        if not self._recurrent:
            self.layer.record_past = False
        for at, inputs in self.layer.conv_states.items() if outlives else ():
            if inputs is not None:
                with torch.inference_mode(False):
                    own = inputs.clone() if inputs.is_inference() else alone(inputs)
                self.layer.conv_states[at] = own


# The classes of a layer's parts, by the name of transformers' class; see ``classes_of``.
KINDS: dict[str, tuple[type[CacheLayer], ...]] = {
    caches.INDEXED: (IndexedAttention,),
    caches.SLIDING: (WindowAttention,),
    caches.STATIC: (StaticAttention,),
    caches.STATIC_SLIDING: (StaticWindow,),
    caches.LINEAR: (LinearAttention,),
    caches.LINEAR_AND_FULL: (Attention, LinearAttention),
    caches.LINEAR_AND_SLIDING: (WindowAttention, LinearAttention),
    caches.EMPTY: (),
}


def states_of(layer: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the inputs of a linear layer's convolutions, and its recurrent states."""
    return layer.conv_states, layer.recurrent_states


class Room:
    """Room for drafts in the layers of a static cache, from the prefill until ``give_back``.

    All layers get one length, because transformers makes their masks for the first layer's. Those
    with windows are replaced after the prefill by layers that overwrite nothing.
    """

    def __init__(self, cache: Any, capacity: int) -> None:
        self.cache, self._layers, self._capacity = cache, cache.layers, capacity
        self._full = [each for each in self._layers if kind_of(each) == caches.STATIC]
        self._sizes = [each.max_cache_len for each in self._full]
        self._windows: dict[int, Any] = {}  # the layers that were replaced, by place
        for layer in self._full:
            _resize(layer, capacity)

    def widen(self, more: int) -> None:
        """Replace the layers that have windows. The prefill stored ``more`` than its positions."""
        capacity = self._capacity if self._full else self._capacity + max(more, 0)
        for at, layer in enumerate(self._layers):
            if kind_of(layer) == caches.STATIC_SLIDING:
                self._windows[at] = layer
                self._layers[at] = wide = new_static_layer(capacity)
                if layer.is_initialized:
                    wide.lazy_initialization(layer.keys[:, :, :0], layer.values[:, :, :0])
                    wide.cumulative_length.fill_(layer.get_seq_length())
                    for own, copied in _held(layer, wide):
                        copied.copy_(own)

    @torch.inference_mode()
    def give_back(self, length: int) -> None:
        """Restore the cache's own layers, with the states of ``length`` positions."""
        for layer, size in zip(self._full, self._sizes, strict=True):
            _resize(layer, size)
            for states in (layer.keys, layer.values) if layer.is_initialized else ():
                states[:, :, length:] = 0  # rejected positions
        for at, layer in self._windows.items():
            wide, self._layers[at] = self._layers[at], layer
            if layer.is_initialized:
                for own, copied in _held(layer, wide):
                    own.copy_(copied)  # rows may have been reordered
                # A layer counts positions in another way once it is full.
                start = int(layer.get_seq_length())
                full = max(start, min(layer.max_cache_len, length))
                for new in (slice(start, full), slice(full, length)):
                    if new.start < new.stop:
                        layer.update(wide.keys[:, :, new], wide.values[:, :, new])


def _held(layer: Any, wide: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the keys and the values of a layer with a window, and where they are in a wide one."""
    end = int(layer.get_seq_length())
    held = min(end, layer.max_cache_len)
    for one, other in ((layer.keys, wide.keys), (layer.values, wide.values)):
        yield one[:, :, :held], other[:, :, end - held : end]


def _resize(layer: Any, capacity: int) -> None:
    """Give a static layer another capacity. Its length stays where it is, for CUDA graphs."""
    if layer.max_cache_len == capacity:
        return
    layer.max_cache_len = capacity
    if layer.is_initialized:
        before = layer.keys, layer.values
        with torch.inference_mode(False):  # calls outside inference mode may write to it
            layer.lazy_initialization(*(each[:, :, :0] for each in before))
        for own, held in zip((layer.keys, layer.values), before, strict=True):
            kept = min(capacity, held.shape[2])
            own[:, :, :kept] = held[:, :, :kept]
