"""Check that a cache and its layers are of kinds that can be rolled back.

The kinds' class names are in ``compat/classes.py``. ``KVCache`` handles each kind.
"""

from __future__ import annotations

from typing import Any

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.classes import (
    CROPPED,
    KNOWN_CACHES,
    LINEAR,
    STATIC,
    STATIC_SLIDING,
    kind_of,
)
from ngramspec.hf_model.compat.layers import can_record, decoder_cache, is_offloaded, storing


def check_kinds(cache: Any) -> None:
    """Raise an UnsupportedError if a cache of transformers is of a kind that cannot be rolled back.

    All its layers except those of cross-attention are checked.
    """
    own = decoder_cache(cache)
    layers = storing(own)
    kinds = sorted({kind_of(layer) for layer in layers})
    names = {kind_of(each) for each in (cache, own)}
    if is_offloaded(own):
        names.add("offloading")
    linear = [layer for layer in layers if kind_of(layer) in LINEAR]
    mixed = bool(linear) and STATIC in kinds
    cropped = {*CROPPED, *LINEAR, STATIC}.issuperset(kinds) and all(map(can_record, linear))
    if names <= KNOWN_CACHES and cropped and not mixed:
        return
    remedy = "use a model with attention layers and a dynamic or static cache"
    if not names <= KNOWN_CACHES or mixed:
        remedy = "remove cache_implementation, or pass a DynamicCache"
    elif STATIC_SLIDING in kinds:
        remedy = "pass cache_implementation='static' instead of a StaticCache, or a DynamicCache"
    raise UnsupportedError(
        f"a {' '.join(sorted(names))} with layers {', '.join(kinds) or 'unknown'} cannot be"
        f" rolled back; {remedy}"
    )
