"""Key-value caches kept between requests, found by the tokens they hold.

A keystroke changes the end of a prompt, so the cache of the request before holds nearly all of it.
A request takes the idle cache of its user that shares the longest beginning with its prompt, cut to
that beginning; or a copy of it, where the cache is in use, or would lose most of what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.hf_model.cache.inplace_kv import grow_in_place
from ngramspec.hf_model.compat.classes import DYNAMIC, kind_of
from ngramspec.hf_model.traits import traits_of

WORTH_COPYING = 32  # tokens of a common beginning
KEEPS = 0.5  # a cache that would keep less of its prompt than this is not cut


@dataclass(slots=True, eq=False)
class Lease:
    """A cache in use by one request.

    Attributes:
        user: whose text it holds.
        cache: of transformers.
        tokens: that it holds, int32 (n,): positions 0 to n - 1.
        reused: how many of them were there before the request.
        prompt: how many of them were the request's prompt; the others were its answer.
        used: when it was last given back, as a count; 0: never.
        busy: whether a request has it.
    """

    user: str
    cache: Any
    tokens: Int32 = field(default_factory=lambda: NO_TOKENS)
    reused: int = 0
    prompt: int = 0
    used: int = 0
    busy: bool = True

    @property
    def bytes(self) -> int:
        """Memory of its keys and values, the room behind them included."""
        return sum(_memory(layer.keys) + _memory(layer.values) for layer in self.cache.layers)


@dataclass(slots=True)
class PoolCounts:
    """What the pool did, since the server began.

    Attributes:
        prompt_tokens: of all requests that took a cache.
        reused_tokens: those of them whose keys and values were there.
        copies: caches that were copied.
        afresh: requests whose model has caches that cannot be cut.
        evicted: caches that were dropped to make room.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    copies: int = 0
    afresh: int = 0
    evicted: int = 0


@dataclass(slots=True)
class CachePool:
    """The caches of one model. Used by one thread.

    Invariant: a busy cache is never cut, evicted or given out; idle caches take at most
    ``max_bytes``, and those of each user at most ``max_bytes_of_user``.

    Attributes:
        make: makes an empty cache.
        max_bytes: of all idle caches.
        max_bytes_of_user: of the idle caches of one user.
        why_afresh: why this model's caches cannot be cut; None: they can.
        counts: what it did.
    """

    make: Callable[[], Any]
    max_bytes: int
    max_bytes_of_user: int
    why_afresh: str | None = None
    counts: PoolCounts = field(default_factory=PoolCounts)
    _caches: list[Lease] = field(default_factory=list)
    _clock: int = 0

    def take(self, user: str, prompt: Int32, *, afresh: bool = False) -> Lease:
        """A cache that holds a beginning of a prompt, all but its last token at most.

        Args:
            user: whose caches may be looked at.
            prompt: int32 (n,).
            afresh: whether the request needs every position computed.
        """
        self.counts.prompt_tokens += len(prompt)
        self.counts.afresh += self.why_afresh is not None
        lease = None if afresh or self.why_afresh else self._find(user, prompt)
        if lease is None:
            lease = Lease(user, self.make())
            self._caches.append(lease)
        lease.busy, lease.reused = True, len(lease.tokens)
        self.counts.reused_tokens += lease.reused
        return lease

    def give_back(self, lease: Lease, tokens: Int32, prompt: int) -> None:
        """Keep a cache that holds these tokens, as far as there is room.

        Args:
            lease: the cache's.
            tokens: int32 (n,): prompt and answer; the cache holds a beginning of them.
            prompt: how many of them are the prompt.
        """
        held = int(lease.cache.get_seq_length())
        self._clock += 1
        lease.tokens, lease.prompt = tokens[:held].copy(), min(held, prompt)
        lease.busy, lease.used = False, self._clock
        if self.why_afresh is not None or not len(lease.tokens):
            self.drop(lease)
        self._make_room([each for each in self._idle if each.user == lease.user], lease.user)
        self._make_room(self._idle, None)

    def drop(self, lease: Lease) -> None:
        """Forget a cache, in whatever state it is."""
        self._caches = [each for each in self._caches if each is not lease]

    @property
    def bytes(self) -> int:
        """Memory of all idle caches."""
        return sum(each.bytes for each in self._idle)

    @property
    def _idle(self) -> list[Lease]:
        return [each for each in self._caches if not each.busy]

    def _find(self, user: str, prompt: Int32) -> Lease | None:
        """The best cache of a user, cut or copied; None: none is worth it."""
        own = [each for each in self._caches if each.user == user]
        found = [(common_length(each.tokens, prompt[:-1]), each) for each in own]
        cut = [each for each in found if not each[1].busy and self._may_cut(*each)]
        length, lease = max(cut, key=_by_length, default=(0, None))
        longest, source = max(found, key=_by_length, default=(0, None))
        if source is not None and longest >= max(WORTH_COPYING, 2 * length):
            return self._copy(source, longest)
        if lease is None or not length:
            return None
        crop(lease.cache, length)
        lease.tokens = lease.tokens[:length]
        return lease

    @staticmethod
    def _may_cut(length: int, lease: Lease) -> bool:
        return length >= KEEPS * lease.prompt

    def _copy(self, source: Lease, length: int) -> Lease:
        """A cache of its own with the beginning of another."""
        copy = Lease(source.user, self.make(), source.tokens[:length].copy())
        for index, layer in enumerate(source.cache.layers):
            if layer.is_initialized:
                copy.cache.update(layer.keys[:, :, :length], layer.values[:, :, :length], index)
        self.counts.copies += 1
        self._caches.append(copy)
        return copy

    def _make_room(self, caches: Sequence[Lease], user: str | None) -> None:
        """Drop the caches that were used least recently until the others fit."""
        limit = self.max_bytes if user is None else self.max_bytes_of_user
        sizes = {id(each): each.bytes for each in caches}
        total = sum(sizes.values())
        for each in sorted(caches, key=lambda each: each.used):
            if total <= limit:
                return
            total -= sizes[id(each)]
            self.counts.evicted += 1
            self.drop(each)


def _by_length(found: tuple[int, Lease]) -> tuple[int, int]:
    return found[0], found[1].used


def common_length(first: Int32, second: Int32) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    size = min(len(first), len(second))
    different = np.flatnonzero(first[:size] != second[:size])
    return int(different[0]) if len(different) else size


def crop(cache: Any, length: int) -> None:
    """Cut a dynamic cache to its first positions."""
    for layer in cache.layers:
        surplus = int(layer.get_seq_length()) - length
        if surplus > 0:
            layer.crop(-surplus)


def cache_maker(model: Any) -> Callable[[], Any]:
    """What makes empty caches for a model, which grow without being copied."""
    from transformers import DynamicCache

    def make() -> Any:
        cache = DynamicCache(config=model.config)
        for layer in cache.layers:
            if kind_of(layer) == DYNAMIC:
                grow_in_place(layer)
        return cache

    return make


def why_not_cut(model: Any) -> str | None:
    """Why a model's caches cannot be cut to a beginning of their text, or None.

    Raises:
        UnsupportedError: the model cannot be speculated with.
    """
    traits = traits_of(model, torch.ones((1, 1), dtype=torch.int64), {})
    kinds = {kind_of(layer) for layer in cache_maker(model)().layers}
    if traits.recurrent:
        return "a recurrent state"
    if kinds != {DYNAMIC} or traits.windows:
        return f"layers that forget: {', '.join(sorted(kinds))}"
    if traits.rope_grows or traits.rope_changes_at is not None or traits.rereads_at is not None:
        return "rotary positions that change with the length"
    reads_text = traits.reads_text and traits.stock is None
    if reads_text or traits.by_slot:
        return "a model that finds tokens by their slots in the cache"
    return None


def _memory(states: torch.Tensor | None) -> int:
    return 0 if states is None else states.untyped_storage().nbytes()
