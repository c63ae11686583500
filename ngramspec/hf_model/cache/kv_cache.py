"""Rollback of a target's key-value cache, layer by layer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.layers import Attention, Needed, classes_of, parts_of
from ngramspec.hf_model.compat import caches
from ngramspec.hf_model.compat.devices import Indices, indices

if TYPE_CHECKING:
    from ngramspec.hf_model.cache.copies import Checkpoint


class KVCache:
    """The decoder's layers in a cache of transformers, all of kinds that can be rolled back.

    The constructor raises an UnsupportedError for other caches. What methods without a docstring do
    is described in ``CacheLayer`` and ``Attention``.

    Attributes:
        layers: all but those of cross-attention, which change only when rows leave.
        attention: those of ``layers`` that hold keys and values.
        gap_obstacle: which layers allow no gaps between the cache's positions; None: all do.
        static: whether the cache has a fixed size.
        capacity: positions that the cache can hold; None: no limit.
        reach: positions that a static layer with a window holds at most; None: there are none.
        key_length: positions that a forward attends to, masked ones included; None: the length.
    """

    def __init__(self, cache: Any, *, recurrent: bool = False) -> None:
        _check_kinds(cache)
        self.cache = cache
        own = caches.decoder_cache(cache)
        self._own_layers = len(own.layers)
        self.layers = parts_of(own, recurrent=recurrent)
        self.attention = cast("list[Attention]", [each for each in self.layers if each.attends])
        self._windows = [each for each in self.layers if each.slides]
        cross = caches.storing(getattr(cache, "cross_attention_cache", None))
        self._cross = [Attention(layer) for layer in cross]
        self._by_kind: dict[Any, list[Any]] = {}
        for each in self.layers:
            self._by_kind.setdefault(type(each), []).append(each)
        self.indexed = any(each.indexed for each in self.layers)
        self.slides = bool(self._windows)
        linear = [each for each in self.layers if each.convolves]
        self.convolves = bool(linear)
        obstacles = (each.gap_obstacle for each in (*linear, *self.layers))
        self.gap_obstacle = next(filter(None, obstacles), None)
        self.checkpoint: Checkpoint | None = None
        if recurrent:
            from ngramspec.hf_model.cache.copies import Checkpoint  # few models have such a state

            self.checkpoint = Checkpoint([each.layer for each in linear])
        self._records = self.slides or self.convolves  # so that each forward is truncated
        self.static = any(each.static for each in self.layers)
        limits = (each.capacity for each in self.layers)
        self.capacity = min((each for each in limits if each is not None), default=None)
        self.key_length = self.capacity
        held = (each.reach for each in self.layers)
        self.reach = max((each for each in held if each is not None), default=None)

    @property
    def held(self) -> int | None:
        """Positions that layers with windows hold; None: there are no such layers."""
        return max((each.held for each in self._windows if each.held is not None), default=None)

    def lengths(self) -> list[int]:
        """Positions in each layer of ``attention``, in any order; one host sync if it is static."""
        kinds = ((kind, layers) for kind, layers in self._by_kind.items() if kind.attends)
        return [each for kind, layers in kinds for each in kind.lengths_of(layers)]

    def length(self) -> int:
        """Positions in the longest layer. It costs one host sync if the cache is static."""
        return max(self.lengths(), default=0)

    def stretch(self, length: int) -> None:
        for each in self.attention:
            each.stretch(length)
        self.key_length = length

    def grow_in_place(self) -> None:
        for each in self.layers:
            each.grow_in_place()

    def make_ragged(self) -> None:
        for each in self.layers:
            each.make_ragged()

    def record(self) -> None:
        for each in self.layers:
            each.record()

    def truncate(self, count: int, needed: Needed = lambda window: window - 1) -> None:
        """Drop the last ``count`` >= 0 positions; call it after every complete forward.

        ``needed`` returns how many of the others a layer with a window needs, by default those of a
        text without gaps; the rest is dropped.
        """
        if count or self._records:
            needed = functools.cache(needed)
            for kind, layers in self._by_kind.items():
                kind.truncate_all(layers, count, needed)

    def truncate_to(self, length: int) -> None:
        """Drop all positions from ``length`` on, layer by layer, after an interrupted forward.

        Layers that the forward added, as Dory's and one over a DynamicCache() do, are dropped.
        """
        del caches.decoder_cache(self.cache).layers[self._own_layers :]
        if self.checkpoint is not None:
            self.checkpoint.restore()
        for each in self.layers:
            each.truncate_to(length)

    def release(self, *, outlives: bool = True) -> None:
        for each in self.layers:
            each.release(outlives=outlives)
        self.key_length = self.capacity

    def reorder(self, origins: Sequence[int]) -> None:
        """Let each row continue row ``origins[row]``. Only rows that change are copied."""
        changed = [row for row, origin in enumerate(origins) if row != origin]
        if changed:
            moves = indices([changed, [origins[row] for row in changed]])
            for each in self.layers:
                each.reorder(origins, moves)

    def keep_paths(self, start: int, paths: Sequence[Sequence[int]]) -> None:
        """Move each row's positions start + path[0], start + path[1], ... to start, ..."""
        moves = [
            (row, start + at, start + node)
            for row, path in enumerate(paths)
            for at, node in enumerate(path)
            if at != node
        ]
        if not moves:
            return

        @functools.cache
        def places(first: int) -> Indices:
            held = [(row, to - first, source - first) for row, to, source in moves]
            return indices([*zip(*held, strict=True)])

        for each in self._with_keys():
            for states in (each.layer.keys, each.layer.values):  # (rows, heads, length, size)
                row, to, source = places(each.first)(states.device)
                states[row, :, to] = states[row, :, source]

    def _with_keys(self) -> list[Attention]:
        return [each for each in self.attention if each.has_keys]

    def compact(self, slots: torch.Tensor) -> None:
        for each in self._with_keys():
            each.compact(slots)

    def keep_rows(self, order: Sequence[int]) -> None:
        for each in (*self._with_keys(), *self._cross):
            each.keep_rows(order)


def _check_kinds(cache: Any) -> None:
    """Raise an UnsupportedError if a cache or one of its layers cannot be rolled back."""
    if cache is None:
        raise UnsupportedError(
            "the model was given no key-value cache; speculation needs one that can be rolled"
            " back: use a model that generates with a DynamicCache"
        )
    own = caches.decoder_cache(cache)
    layers = caches.storing(own)
    kinds = sorted({caches.kind_of(layer) for layer in layers})
    names = {caches.kind_of(each) for each in (cache, own)}
    if getattr(own, "offloading", False):  # it moves its layers to the CPU
        names.add("offloading")
    classes = {kind: classes_of(kind) for kind in kinds}
    parts = [part for each in classes.values() for part in each or ()]
    mixed = any(part.static for part in parts) and any(part.convolves for part in parts)
    if not names <= caches.KNOWN_CACHES or mixed:
        remedy = "remove cache_implementation, or pass a DynamicCache"
    elif None in classes.values():
        remedy = "use a model with attention layers and a dynamic or static cache"
    else:
        return
    raise UnsupportedError(
        f"a {' '.join(sorted(names))} with layers {', '.join(kinds) or 'unknown'} cannot be"
        f" rolled back; {remedy}"
    )
