"""Layers with an index of their keys, behind an interrupted forward."""

from __future__ import annotations

from typing import Any


def truncate_indexed(layer: Any, length: int) -> None:
    """Drop all positions of an indexed layer from ``length`` on.

    A forward adds keys and their index one after the other, some models the index first. One that
    was interrupted in between leaves them unequally long, so a crop by a count would be wrong.

    Args:
        layer: a DynamicIndexedLayer.
        length: positions that stay.
    """
    if layer.keys is not None:
        layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
    if layer.indexer_keys is not None:
        layer.indexer_keys = layer.indexer_keys[:, :length]
    places = getattr(layer, "indexer_position_ids", None)
    if places is not None:
        layer.indexer_position_ids = places[..., :length]
