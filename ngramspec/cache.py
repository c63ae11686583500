"""Rolling a target's key-value cache back, one way per kind of cache."""

from __future__ import annotations

from typing import Any

from ngramspec.errors import UnsupportedError


class CropRollback:
    """Full-attention dynamic layers: cut off the last positions.

    Every layer is cut by its own length, so that a forward which was interrupted half-way
    through the layers is rolled back too.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def length(self) -> int:
        """Positions in the cache, of the layer that has most."""
        return max((int(layer.get_seq_length()) for layer in self.cache.layers), default=0)

    def to(self, length: int) -> None:
        """Drop every position from ``length`` on."""
        for layer in self.cache.layers:
            surplus = int(layer.get_seq_length()) - length
            if surplus > 0:
                layer.crop(-surplus)


def rollback_for(cache: Any) -> CropRollback:
    """The way to roll ``cache`` back.

    Raises:
        UnsupportedError: there is no cache, or it is of a kind that cannot be rolled back here.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    if cache is None:
        raise UnsupportedError(
            "the model was given no key-value cache; speculation needs one that can be rolled"
            " back: use a model that generates with a DynamicCache"
        )
    kinds = sorted({type(layer).__name__ for layer in getattr(cache, "layers", [])})
    full_attention = type(cache) is DynamicCache and all(
        type(layer) is DynamicLayer for layer in cache.layers
    )
    if not full_attention or getattr(cache, "offloading", False):
        name = type(cache).__name__ + (" (offloaded)" if getattr(cache, "offloading", 0) else "")
        raise UnsupportedError(
            f"a {name} with layers {', '.join(kinds) or 'unknown'} cannot be rolled back;"
            " use a model with full attention and the default DynamicCache"
        )
    return CropRollback(cache)
