"""transformers' caches: the name under which they are passed, their classes and their parts.

Classes are compared by name, so that their modules do not have to be imported. Tests check the
names against the installed version (``tests/transformers_names.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from ngramspec.hf_model.compat.package import MARKS_CACHES, has

MODULE = "transformers.cache_utils"
KNOWN_CACHES = frozenset({"DynamicCache", "StaticCache", "EncoderDecoderCache"})
# Layers; ``classes_of`` in ``cache/layers.py`` finds the class that rolls each of them back.
DYNAMIC = "DynamicLayer"
INDEXED = "DynamicIndexedLayer"
SLIDING = "DynamicSlidingWindowLayer"
STATIC = "StaticLayer"
STATIC_SLIDING = "StaticSlidingWindowLayer"  # it overwrites its oldest positions: no rollback
LINEAR = "LinearAttentionLayer"
LINEAR_AND_FULL = "LinearAttentionAndFullAttentionLayer"
LINEAR_AND_SLIDING = "LinearAttentionAndSlidingWindowAttentionLayer"
EMPTY = "DummyLayer"  # it stores nothing: it uses another layer's keys, or has no attention

# Names of a cache: an argument of forwards, a field of outputs. transformers 5.24 renamed it. If a
# forward gets both names, the old one is dropped. The last one is that of Mamba's models.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


@functools.cache
def cache_names() -> tuple[str, ...]:
    """Return the names that the installed transformers uses, that of most models first."""
    from transformers.generation.utils import GenerationMixin

    name = parameter_of(GenerationMixin.prepare_inputs_for_generation) or CACHE_NAMES[0]
    return (name,) if name == CACHE_NAMES[0] else CACHE_NAMES[1:]


def parameter_of(function: Callable[..., Any]) -> str | None:
    """Return the name of a function's parameter for a cache, or None."""
    known = signature(function).parameters
    return next((name for name in CACHE_NAMES if name in known), None)


def cache_argument(cache: Any) -> dict[str, Any]:
    """Return the keyword argument that passes a cache, or the field of an output that holds it."""
    return {cache_names()[0]: cache}


def cache_of(arguments: Mapping[str, Any], names: Sequence[str] = ()) -> Any:
    """Return the cache in the arguments or the outputs of a model's forward, or None."""
    found = (arguments.get(name) for name in names or cache_names())
    return next((each for each in found if each is not None), None)


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the cache in a caller's arguments of ``generate``, under any name, or None."""
    return cache_of(arguments, CACHE_NAMES)


def kind_of(each: Any) -> str:
    """Return a cache's or layer's class, or the base in transformers whose methods it has all."""
    kinds = type(each).__mro__
    for place, kind in enumerate(kinds):
        if kind.__module__ == MODULE:
            base = {name for above in kind.__mro__ for name in vars(above)}
            changed = {name for below in kinds[:place] for name in vars(below)}
            return type(each).__name__ if any(map(_matters, changed & base)) else kind.__name__
    return type(each).__name__


def _matters(name: str) -> bool:
    """Whether overriding a name changes behaviour. Python itself sets many special names."""
    special = ("__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__")
    return name in special or not (name.startswith("__") or name == "_abc_impl")


def new_cache(config: Any = None, *, windows: bool = True) -> Any:
    """Return an empty dynamic cache; without ``windows``, only masks apply these."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache(config=config)
    for at, layer in enumerate(cache.layers):
        if not windows and kind_of(layer) == SLIDING:
            cache.layers[at] = DynamicLayer()
    return cache


def add_layers(cache: Any, count: int) -> None:
    """Add empty layers to a dynamic cache up to ``count``, as forwards in loops do (Dory)."""
    from transformers.cache_utils import DynamicLayer

    cache.layers.extend(DynamicLayer() for _ in range(len(cache.layers), count))


def decoder_cache(cache: Any) -> Any:
    """Return the self-attention cache in an encoder-decoder model's cache, or ``cache`` itself."""
    return getattr(cache, "self_attention_cache", cache)


def storing(cache: Any) -> list[Any]:
    """Return the layers of a cache that store states of their own; none if it has no layers."""
    return [layer for layer in getattr(cache, "layers", ()) if kind_of(layer) != EMPTY]


def is_callers(cache: Any) -> bool:
    """Whether a cache belongs, or may belong, to the caller, who may use it again."""
    marked = getattr(cache, "_is_user_defined", None)
    return not has(MARKS_CACHES) if marked is None else bool(marked)


def mark_as_made_by_generate(cache: Any) -> None:
    """Mark a cache as made by ``generate``, as newer versions of transformers do."""
    cache._is_user_defined = False


Update = Callable[..., Any]


def replace_update(owner: Any, update: Update) -> Update | None:
    """Replace the ``update`` of one layer or cache; ``restore_update`` takes what is returned."""
    own: Update | None = vars(owner).get("update")
    owner.update = update
    return own


def restore_update(owner: Any, own: Update | None) -> None:
    """Undo ``replace_update``, given what it returned."""
    if own is None:
        vars(owner).pop("update", None)
    else:
        owner.update = own
