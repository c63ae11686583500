"""Rollback of a target's key-value cache, for each kind of layer.

full attention   rejected positions are cut off, also in the index of an indexed layer
sliding window   see ``window_layers``
convolution      see ``recurrent_state``
recurrent state  see ``recurrent_state``
static           the length is reduced in place; later positions are masked

A dynamic layer can also return keys and values of a constant length, as a static one does, or grow
without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.inplace_kv import InPlace, close_up, grows_in_place
from ngramspec.hf_model.cache.kinds import check_kinds
from ngramspec.hf_model.cache.recurrent_state import Checkpoint
from ngramspec.hf_model.cache.window_layers import WindowLayers, own_tokens
from ngramspec.hf_model.compat import layers as fields
from ngramspec.hf_model.compat.classes import DYNAMIC, INDEXED, STATIC, kind_of


class KVCache:
    """The decoder's layers in a cache, all of kinds that can be rolled back.

    Keys and values of a layer are (batch, heads, positions, size) each, in the model's dtype.

    Args:
        cache: transformers' cache, which the model's forward takes and returns.
        recurrent: whether its linear layers have a recurrent state in addition to a convolution.

    Attributes:
        layers: those with keys and values, except those of cross-attention.
        windows: those of ``layers`` that forget positions outside a window.
        indexed: whether a layer has an index of its keys.
        checkpoint: copies of the linear layers' recurrent states; None: they have none.
        capacity: positions that the cache can hold; None: no limit.
    """

    def __init__(self, cache: Any, *, recurrent: bool = False) -> None:
        self.cache = cache
        self._own_layers = len(fields.decoder_cache(cache).layers)
        layers = fields.storing(fields.decoder_cache(cache))
        self._cross = fields.cross_layers(cache)  # they change only when rows leave
        self.layers = [layer for layer in layers if hasattr(layer, "get_seq_length")]
        self.windows = WindowLayers([layer for layer in self.layers if layer.is_sliding])
        self._static = [layer for layer in self.layers if kind_of(layer) == STATIC]
        others = (*self._static, *self.windows.layers)
        self._dynamic = [layer for layer in self.layers if layer not in others]
        self.indexed = any(kind_of(layer) == INDEXED for layer in self.layers)
        self._linear = [layer for layer in layers if fields.is_linear(layer)]
        self._convolutions = [] if recurrent else self._linear
        # The flag of these layers that has a window record lets their convolutions record, too.
        self._recorded = [layer for layer in self.windows.layers if layer in self._linear]
        self.checkpoint = Checkpoint(self._linear) if recurrent else None
        self._stretched = 0
        self.capacity = _capacity(self._static)
        # Layers whose ``update`` is replaced, and what ``replace_update`` returned for each.
        self._updated: list[tuple[Any, Any]] = []

    @property
    def gap_obstacle(self) -> str | None:
        """Which layers do not allow gaps between the cache's positions; None: all do."""
        if self.checkpoint is not None:
            return "a recurrent state"
        if self.convolves:
            return "convolutions over positions"
        return "attention with an index of its keys" if self.indexed else None

    @property
    def convolves(self) -> bool:
        """Whether a layer keeps the last inputs of a convolution, or a recurrent state."""
        return bool(self._linear)

    @property
    def slides(self) -> bool:
        """Whether a layer forgets positions that have left its window."""
        return bool(self.windows.layers)

    @property
    def key_length(self) -> int | None:
        """Positions that a forward attends to, masked ones included; None: the current length."""
        return self._stretched or self.capacity

    def resize(self, capacity: int) -> None:
        """Make room for ``capacity`` positions in the static layers, which must be empty."""
        for layer in self._static:
            fields.resize_static(layer, capacity)
        self.capacity = _capacity(self._static)

    def stretch(self, length: int) -> None:
        """Have dynamic layers return ``length`` keys and values, padded with zeros at the end.

        The masks of the forwards must have the same length. It lasts until ``release``.
        """
        self._update(self.layers, lambda layer: _stretching(layer.update, length))
        self._stretched = length

    def grow_in_place(self) -> None:
        """Have dynamic layers of full attention grow without copies, until ``release``.

        Layers that did so before keep doing so after ``release``.
        """
        dynamic = [layer for layer in self.layers if kind_of(layer) == DYNAMIC]
        layers = [layer for layer in dynamic if not grows_in_place(layer)]
        self._update(layers, lambda layer: InPlace(layer).update)

    def _update(self, layers: list[Any], make: Callable[[Any], Callable[..., Any]]) -> None:
        for layer in layers:
            self._updated.append((layer, fields.replace_update(layer, make(layer))))

    def length(self) -> int:
        """Positions in the longest layer. It costs one host sync if the cache is static."""
        layers = [each for each in self.layers if each not in self._static]
        layers += self._static[:1]  # all static layers are equally long
        return max((int(layer.get_seq_length()) for layer in layers), default=0)

    def record(self) -> None:
        """From the next forward on, keep what leaves the windows until the next ``truncate``."""
        for layer in (*self.windows.layers, *self._convolutions):
            layer.activate_past_recording()

    def truncate(self, count: int, needed: Callable[[int], int] = own_tokens) -> None:
        """Drop the last ``count`` >= 0 positions; call it after every complete forward.

        ``needed`` returns, for the size of a layer's window, how many of the remaining positions
        that layer needs; the rest is dropped.
        """
        if count and self._static:
            fields.shorten_static(self._static, count)
        for layer in self._dynamic if count else ():
            self._crop(layer, count)
        if self.slides:
            self.windows.truncate(count, needed)
        for layer in self._convolutions:
            fields.truncate_convolutions(layer, count)
        if self.checkpoint is not None:  # it has restored the inputs where positions are dropped
            for layer in self._recorded:
                fields.truncate_convolutions(layer, 0)

    def _crop(self, layer: Any, count: int) -> None:
        """Drop the last ``count`` keys and values of a dynamic layer."""
        if layer in self._linear:
            fields.crop_attention(layer, count)
        else:
            layer.crop(-count)

    def truncate_to(self, length: int) -> None:
        """Drop all positions from ``length`` on, layer by layer, after an interrupted forward.

        Layers that the forward added, as Dory's and one over a DynamicCache() do, are dropped.
        Convolutions return to their inputs before the forward, and recurrent states to the
        checkpoint, if there is one.
        """
        del fields.decoder_cache(self.cache).layers[self._own_layers :]
        undo = fields.undo_convolutions if length else fields.clear_convolutions
        for layer in self._convolutions:
            undo(layer)
        if self.checkpoint is not None:
            self.checkpoint.restore()
        for layer in self.layers:
            surplus = max(int(layer.get_seq_length()) - length, 0)
            if layer in self._static:
                fields.shorten_static([layer], surplus)
            elif kind_of(layer) == INDEXED:
                fields.truncate_indexed(layer, length)
            elif surplus and not layer.is_sliding:
                self._crop(layer, surplus)
        self.windows.truncate_to(length)

    def release(self, *, outlives: bool = True) -> None:
        """Have layers slide and grow again as in the baseline.

        ``outlives``: whether the cache is used after the generation; then spare memory is freed.
        """
        self.windows.release()
        for layer in self._convolutions:
            fields.stop_recording(layer)  # layers overwrite their inputs in place again
            if outlives:
                fields.copy_convolutions(layer)
        for layer, own in self._updated:
            fields.restore_update(layer, own)
            if outlives and not self._stretched:
                close_up(layer)
        self._updated, self._stretched = [], 0

    def reorder(self, origins: Sequence[int]) -> None:
        """Let each row continue row ``origins[row]``. Only rows that change are copied."""
        changed = [row for row, origin in enumerate(origins) if row != origin]
        if not changed:
            return
        pairs = torch.tensor([changed, [origins[row] for row in changed]], device="cpu")
        for states in self._states_by_row():
            to, source = pairs.to(states.device, non_blocking=True).unbind()
            states[to] = states[source]
        for layer in self.layers:
            fields.reorder_index(layer, origins)

    def _with_keys(self) -> list[Any]:
        """Layers that hold keys; one that shares another layer's may hold only an index."""
        return [layer for layer in self.layers if layer.keys is not None]

    def _states_by_row(self) -> Iterator[torch.Tensor]:
        """Yield all existing states except an index's positions, each (rows, ...)."""
        for layer in self._with_keys():
            yield from (layer.keys, layer.values)  # (rows, heads, length, size)
        for layer in self.layers:
            index = fields.index_keys(layer)
            if index is not None:
                yield index  # (rows, length, size)
        for layer in self._linear:
            for states in fields.linear_states(layer):
                yield from (each for each in states.values() if each is not None)

    def keep_paths(self, start: int, paths: Sequence[Sequence[int]]) -> None:
        """Move each row's positions start + path[0], start + path[1], ... to start, start + 1, ...

        Other positions from ``start`` on are overwritten or left over; ``truncate`` drops them. A
        path lists accepted positions of the forward, ascending.
        """
        moves = [
            (row, start + at, start + node)
            for row, path in enumerate(paths)
            for at, node in enumerate(path)
            if at != node
        ]
        if not moves:
            return
        places = torch.tensor(moves, device="cpu").T
        indices: dict[tuple[torch.device, int], torch.Tensor] = {}
        for layer in self._with_keys():
            gone = fields.dropped(layer)
            for states in (layer.keys, layer.values):  # (rows, heads, length, size)
                key = states.device, gone
                if key not in indices:
                    at = places - torch.tensor([[0], [gone], [gone]]) if gone else places
                    indices[key] = at.to(states.device, non_blocking=True)
                row, to, source = indices[key].unbind()
                states[row, :, to] = states[row, :, source]

    def compact(self, slots: torch.Tensor) -> None:
        """Keep some positions of each row: int64 (batch, kept) ``slots``, in their new order.

        What a layer with a window no longer holds is masked, or outside every row's window.
        """
        for layer in self._with_keys():
            own = self.windows.kept_of(layer, slots) if layer.is_sliding else slots
            for name in ("keys", "values"):
                states = getattr(layer, name)  # (batch, heads, length, size)
                index = own[:, None, :, None].to(states.device)
                index = index.expand(-1, states.shape[1], -1, states.shape[3])
                kept = states.gather(2, index)
                if not layer.is_sliding:  # in place, to keep the layer's free memory
                    states[:, :, : kept.shape[2]] = kept
                    kept = states[:, :, : kept.shape[2]]
                setattr(layer, name, kept)

    def keep_rows(self, order: Sequence[int]) -> None:
        """Keep some rows of the batch; ``order[place] >= place`` is where a place's row was."""
        moved = [(place, was) for place, was in enumerate(order) if place != was]
        for layer in (*self._with_keys(), *self._cross):
            for name in ("keys", "values"):
                states = getattr(layer, name)  # (batch, heads, length, size)
                for place, was in moved:
                    states[place] = states[was]
                setattr(layer, name, states[: len(order)])


def _capacity(static: Sequence[Any]) -> int | None:
    return min((int(layer.get_max_length()) for layer in static), default=None)


def _stretching(update: Callable[..., Any], length: int) -> Callable[..., Any]:
    def stretched(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        states = update(*args, **kwargs)  # (batch, heads, positions, size) each
        return tuple(pad(each, (0, 0, 0, length - each.shape[2])) for each in states)

    return stretched


def kv_cache_for(cache: Any, *, recurrent: bool = False) -> KVCache:
    """Return a KVCache that rolls a model's cache back, or raise an UnsupportedError."""
    if cache is None:
        raise UnsupportedError(
            "the model was given no key-value cache; speculation needs one that can be rolled"
            " back: use a model that generates with a DynamicCache"
        )
    check_kinds(cache)
    return KVCache(cache, recurrent=recurrent)
