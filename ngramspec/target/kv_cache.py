"""Rolling a target's key-value cache back, one way per kind of layer.

full attention   positions are cut off
sliding window   the layer records what slides out until it is cropped, after every forward
static           the length is counted back in place; what lies behind it is masked

A dynamic layer can be made to hand out keys and values of one length, as a static one does, or to
grow without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from ngramspec.errors import UnsupportedError
from ngramspec.target.hf_private import is_user_defined
from ngramspec.target.inplace_kv import InPlace, close_up

MARKING = (5, 19)  # transformers marks the caches that callers bring, since this version
DYNAMIC = "DynamicLayer"
CROPPED = (DYNAMIC, "DynamicSlidingWindowLayer")
STATIC = "StaticLayer"
SLIDING_STATIC = "StaticSlidingWindowLayer"
CACHES = "transformers.cache_utils"


class KVCache:
    """The self-attention layers of a cache, all of kinds that can be rolled back.

    Args:
        cache: what the model's forward takes and returns.
        layers: those of its self-attention.
    """

    def __init__(self, cache: Any, layers: list[Any]) -> None:
        self.cache = cache
        self.layers = layers
        self._sliding = [layer for layer in layers if layer.is_sliding]
        self._static = [layer for layer in layers if kind_of(layer) == STATIC]
        self._stretched = 0
        self._updated: list[tuple[Any, Any]] = []  # layers, with an ``update`` of their own or None

    @property
    def allows_gaps(self) -> bool:
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

    @property
    def key_length(self) -> int | None:
        """To how many positions a forward attends, masked ones included; None: as many as are."""
        return self._stretched or self.capacity

    def resize(self, capacity: int) -> None:
        """Give the static layers, which hold nothing yet, room for ``capacity`` positions."""
        for layer in self._static:
            layer.max_cache_len = capacity
            if layer.is_initialized:  # ahead of a prefill in chunks
                layer.lazy_initialization(layer.keys[:, :, :0], layer.values[:, :, :0])

    def stretch(self, length: int) -> None:
        """Have growing layers hand out ``length`` keys and values, zeros behind their own.

        The masks of the forwards have to be as long. Until ``release``.
        """
        self._update(self.layers, lambda layer: _stretching(layer.update, length))
        self._stretched = length

    def grow_in_place(self) -> None:
        """Have growing layers of full attention leave room behind, until ``release``."""
        layers = [layer for layer in self.layers if kind_of(layer) == DYNAMIC]
        self._update(layers, lambda layer: InPlace(layer).update)

    def _update(self, layers: list[Any], make: Callable[[Any], Callable[..., Any]]) -> None:
        for layer in layers:
            self._updated.append((layer, vars(layer).get("update")))
            layer.update = make(layer)

    def length(self) -> int:
        """Positions in the cache, of the layer that has most."""
        layers = [each for each in self.layers if each not in self._static]
        layers += self._static[:1]  # they are as long, and say so from the device
        return max((int(layer.get_seq_length()) for layer in layers), default=0)

    def record(self) -> None:
        """Keep what slides out of windows until it is known to stay, from the next forward on."""
        for layer in self._sliding:
            layer.activate_past_recording()

    def truncate(self, count: int) -> None:
        """Drop the last ``count`` positions of a whole forward; call it after each, 0 included."""
        if count and self._static:
            torch._foreach_sub_([layer.cumulative_length for layer in self._static], count)
        for layer in self.layers:
            if layer not in self._static and (count or layer.is_sliding):
                layer.crop(-count)

    def truncate_to(self, length: int) -> None:
        """Drop every position from ``length`` on, layer by layer: a forward was interrupted."""
        for layer in self.layers:
            surplus = max(int(layer.get_seq_length()) - length, 0)
            if layer in self._static:
                layer.cumulative_length.sub_(surplus)
            elif layer.is_sliding and length == 0:  # it may have let go of what a crop would need
                layer.keys = layer.values = None
                layer.is_initialized, layer.cumulative_length = False, 0
            elif layer.is_sliding and not getattr(
                layer, "record_past", True
            ):  # a prefill in chunks, which let go
                continue  # of what slid out: plain decoding, too, leaves what it came to
            elif surplus or (layer.is_sliding and layer.is_initialized):
                layer.crop(-surplus)

    def release(self, *, outlives: bool = True) -> None:
        """Let windows slide, and growing layers grow, again as in plain decoding.

        Args:
            outlives: whether anybody sees the cache after the generation.
        """
        for layer in self._sliding:
            layer.record_past = False
        for layer, own in self._updated:
            if own is None:
                vars(layer).pop("update", None)
            else:
                layer.update = own
            if outlives and not self._stretched:
                close_up(layer)
        self._updated, self._stretched = [], 0

    def keep_path(self, start: int, path: Sequence[int]) -> None:
        """Move the positions start + path[0], start + path[1], ... to start, start + 1, ...

        Of a batch of one row; what lay there, and behind, is not kept.
        """
        stay = next((at for at, node in enumerate(path) if at != node), len(path))
        places = torch.tensor(path[stay:], device="cpu") + start
        indices: dict[torch.device, torch.Tensor] = {}
        for layer in self.layers:
            for states in (layer.keys, layer.values):  # (1, heads, length, size)
                if states.device not in indices:
                    indices[states.device] = places.to(states.device, non_blocking=True)
                moved = states.index_select(2, indices[states.device])
                states[:, :, start + stay : start + len(path)] = moved

    def compact(self, slots: torch.Tensor) -> None:
        """Keep some positions of each row, in the order given: int64 (batch, kept)."""
        for layer in self.layers:
            for name in ("keys", "values"):
                states = getattr(layer, name)  # (batch, heads, length, size)
                index = slots[:, None, :, None].to(states.device)
                index = index.expand(-1, states.shape[1], -1, states.shape[3])
                kept = states.gather(2, index)
                states[:, :, : kept.shape[2]] = kept  # where a layer has room, it keeps that room
                setattr(layer, name, states[:, :, : kept.shape[2]])


def _stretching(update: Callable[..., Any], length: int) -> Callable[..., Any]:
    def stretched(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        states = update(*args, **kwargs)  # (batch, heads, positions, size) each
        return tuple(pad(each, (0, 0, 0, length - each.shape[2])) for each in states)

    return stretched


def is_callers(cache: Any) -> bool:
    """Whether a cache is, or may be, the caller's own, who may go on with it."""
    marked = is_user_defined(cache)
    return transformers_before(MARKING) if marked is None else marked


def transformers_before(version: tuple[int, int]) -> bool:
    """Whether the installed transformers is older than a (major, minor) version."""
    from transformers import __version__

    return tuple(int(each) for each in __version__.split(".")[:2]) < version


def kv_cache_for(cache: Any) -> KVCache:
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
    kinds = sorted({kind_of(layer) for layer in layers})
    known = {"DynamicCache", "StaticCache", "EncoderDecoderCache"}
    names = {kind_of(each) for each in (cache, own)}
    if getattr(own, "offloading", False):
        names.add("offloading")
    if not (names <= known and set(kinds) <= {*CROPPED, STATIC}):
        remedy = "use a model with attention layers and a dynamic or static cache"
        if names <= known and SLIDING_STATIC in kinds:
            remedy = "use a dynamic one: remove cache_implementation, or pass a DynamicCache"
        raise UnsupportedError(
            f"a {' '.join(sorted(names))} with layers {', '.join(kinds) or 'unknown'} cannot be"
            f" rolled back; {remedy}"
        )
    return KVCache(cache, layers)


def kind_of(each: Any) -> str:
    """Name of a cache's or layer's class: that of transformers where a subclass overrides nothing.

    A subclass that only adds, or is made otherwise, is rolled back as its base class is.
    """
    for kind in type(each).__mro__:
        if kind.__module__ == CACHES:
            base = {name for above in kind.__mro__ for name in vars(above)}
            changed = {name for below in _before(type(each), kind) for name in vars(below)}
            return type(each).__name__ if any(map(_matters, changed & base)) else kind.__name__
    return type(each).__name__


def _matters(name: str) -> bool:
    """Whether a class that overrides a name behaves otherwise: Python itself sets many."""
    special = ("__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__")
    return name in special or not (name.startswith("__") or name == "_abc_impl")


def _before(kind: type, base: type) -> list[type]:
    """The classes that stand before ``base`` in the order in which ``kind`` looks up names."""
    order = list(kind.__mro__)
    return order[: order.index(base)]
