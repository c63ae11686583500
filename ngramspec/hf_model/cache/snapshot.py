"""A cache's state at one length, for layers that do not keep every position."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ngramspec.hf_model.compat.classes import DYNAMIC, kind_of
from ngramspec.hf_model.compat.layers import (
    dropped,
    is_linear,
    may_record,
    stop_recording,
    stores,
    storing,
)


def cuts_anywhere(cache: Any) -> bool:
    """Whether a cache's layers hold every position, so that it can be cropped to any length."""
    return not any(is_linear(each) or dropped(each) for each in storing(cache))


def forgets(cache: Any, length: int) -> bool:
    """Whether a layer of a cache of ``length`` positions does not hold all of them."""
    return any(
        is_linear(each) or (each.is_sliding and length >= each.sliding_window)
        for each in storing(cache)
    )


class Snapshot:
    """The state of a dynamic cache at one length.

    Layers of full attention are not copied: they can be cropped. The others are: what their
    windows hold, the inputs of convolutions, and recurrent states. The cache has one row.
    """

    def __init__(self, cache: Any) -> None:
        self.length = int(cache.get_seq_length())  # positions in the cache
        self._layers = {
            at: _copied(layer)
            for at, layer in enumerate(cache.layers)
            if stores(layer) and kind_of(layer) != DYNAMIC
        }

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(map(memory, self._layers.values()))

    def restore(self, cache: Any, source: Any) -> None:
        """Give ``cache`` the first ``length`` positions of the snapshot's cache, ``source``.

        ``cache`` is empty, or ``source`` itself.
        """
        for at, layer in enumerate(source.layers):
            if at in self._layers:
                cache.layers[at] = _copied(self._layers[at])
            elif not stores(layer):
                continue
            elif cache is source:
                layer.crop(min(self.length - int(layer.get_seq_length()), 0))
            elif layer.is_initialized:
                states = layer.keys[:, :, : self.length], layer.values[:, :, : self.length]
                cache.layers[at].update(*states)


def memory(layer: Any) -> int:
    """Return the bytes of a layer's tensors, including their unused capacity."""
    return sum(
        each.untyped_storage().nbytes()
        for value in vars(layer).values()
        for each in (value.values() if isinstance(value, dict) else (value,))
        if isinstance(each, torch.Tensor)
    )


def _copied(layer: Any) -> Any:
    """Return a copy of a layer that does not record what it overwrites."""
    twin = copy.copy(layer)
    for name, value in vars(layer).items():
        setattr(twin, name, _clone(value))
    if may_record(layer):
        stop_recording(twin)
    return twin


def _clone(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clone(each) for key, each in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value
