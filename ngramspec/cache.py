"""Rolling a target's key-value cache back, one way per kind of layer.

full attention   positions are cut off
sliding window   the layer records what slides out until it is cropped, after every forward
static           the length is counted back in place; what lies behind it is masked
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ngramspec.errors import UnsupportedError

CROPPED = ("DynamicLayer", "DynamicSlidingWindowLayer")
STATIC = "StaticLayer"


class Rollback:
    """The self-attention layers of a cache, all of kinds that can be rolled back.

    Args:
        cache: what the model's forward takes and returns.
        layers: those of its self-attention.
    """

    def __init__(self, cache: Any, layers: list[Any]) -> None:
        self.cache = cache
        self.layers = layers
        self._sliding = [layer for layer in layers if layer.is_sliding]
        self._static = [layer for layer in layers if type(layer).__name__ == STATIC]

    @property
    def holes(self) -> bool:
        """Whether rows may have gaps in it: positions are what masks say, and can be moved."""
        return not self._sliding and not self._static

    @property
    def slides(self) -> bool:
        """Whether a layer forgets what is behind its window."""
        return bool(self._sliding)

    @property
    def capacity(self) -> int | None:
        """Positions it can hold; None: any number."""
        sizes = [int(layer.get_max_length()) for layer in self._static]
        return min(sizes, default=None)

    def length(self) -> int:
        """Positions in the cache, of the layer that has most."""
        return max((int(layer.get_seq_length()) for layer in self.layers), default=0)

    def record(self) -> None:
        """Keep what slides out of windows until it is known to stay, from the next forward on."""
        for layer in self._sliding:
            layer.activate_past_recording()

    def back(self, count: int) -> None:
        """Drop the last ``count`` positions of a whole forward; call it after each, 0 included."""
        for layer in self.layers:
            if layer in self._static:
                layer.cumulative_length.sub_(count)
            elif count or layer.is_sliding:
                layer.crop(-count)

    def to(self, length: int) -> None:
        """Drop every position from ``length`` on, layer by layer: a forward was interrupted."""
        for layer in self.layers:
            surplus = max(int(layer.get_seq_length()) - length, 0)
            if type(layer).__name__ == STATIC:
                layer.cumulative_length.sub_(surplus)
            elif surplus or (layer.is_sliding and layer.is_initialized):
                layer.crop(-surplus)

    def release(self) -> None:
        """Let windows slide again as in plain decoding."""
        for layer in self._sliding:
            layer.record_past = False

    def pick(self, start: int, path: Sequence[int]) -> None:
        """Move the positions start + path[0], start + path[1], ... to start, start + 1, ...

        Of a batch of one row; what lay there, and behind, is not kept.
        """
        for layer in self.layers:
            for states in (layer.keys, layer.values):  # (1, heads, length, size)
                index = torch.tensor(path).to(states.device, non_blocking=True) + start
                states[:, :, start : start + len(path)] = states.index_select(2, index)

    def gather(self, slots: torch.Tensor) -> None:
        """Keep some positions of each row, in the order given: int64 (batch, kept)."""
        for layer in self.layers:
            for name in ("keys", "values"):
                states = getattr(layer, name)  # (batch, heads, length, size)
                index = slots[:, None, :, None].to(states.device)
                index = index.expand(-1, states.shape[1], -1, states.shape[3])
                setattr(layer, name, states.gather(2, index))


def rollback_for(cache: Any) -> Rollback:
    """The way to roll ``cache`` back.

    Raises:
        UnsupportedError: there is no cache, or it is of a kind that cannot be rolled back here.
    """
    if cache is None:
        raise UnsupportedError(
            "the model was given no key-value cache; speculation needs one that can be rolled"
            " back: use a model that generates with a DynamicCache"
        )
    own = getattr(cache, "self_attention_cache", cache)
    layers = list(getattr(own, "layers", []))
    kinds = sorted({type(layer).__name__ for layer in layers})
    known = {"DynamicCache", "StaticCache", "EncoderDecoderCache"}
    names = {type(each).__name__ for each in (cache, own)}
    if getattr(own, "offloading", False):
        names.add("offloading")
    if not (names <= known and set(kinds) <= {*CROPPED, STATIC}):
        raise UnsupportedError(
            f"a {' '.join(sorted(names))} with layers {', '.join(kinds) or 'unknown'} cannot be"
            " rolled back; use a model with attention layers and a dynamic or static cache"
        )
    return Rollback(cache, layers)
