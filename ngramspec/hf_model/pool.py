"""Key-value caches kept between requests, found by the tokens they hold.

A keystroke changes the end of a prompt, so the previous request's cache holds nearly all of it.
A request gets the idle cache of its user that shares the longest prefix with its prompt, cropped to
that prefix. If the cache is in use, or cropping would discard most of it, the request gets a copy.

Windows, convolutions and recurrent states do not keep every position. A cache that has lost some
can only return to its ``Snapshot``s, which are taken at multiples of ``MARK_EVERY`` tokens near the
ends of prompts and of what was read at once, and where answers begin.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ngramspec.draft import NO_TOKENS, Int32
from ngramspec.hf_model.cache.copies import (
    Snapshot,
    copies_anywhere,
    copy_positions,
    cuts_anywhere,
    forgets,
    memory,
)
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.cache.layers import parts_of
from ngramspec.hf_model.compat.caches import new_cache
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.facts import Ability, facts_of, why_unsupported

MARK_EVERY = 32  # tokens
MAX_MARKS = 4  # snapshots of a cache, which bound its memory
MIN_COPIED_TOKENS = 16  # shortest common prefix that is copied
MIN_KEPT_SHARE = 0.5  # of its prompt that a cropped cache must keep; not tuned


@dataclass(slots=True, eq=False)
class Lease:
    """A cache of transformers with the text of one user; ``busy`` while a request uses it."""

    user: str
    cache: Any
    tokens: Int32 = field(default_factory=lambda: NO_TOKENS)  # (n,), at positions 0 to n - 1
    reused: int = 0  # number of tokens in the cache when the last request received it
    prompt: int = 0  # number of tokens of the last request's prompt; the others were the answer
    used: int = 0  # logical time at which it was last returned; 0: never
    busy: bool = True
    marks: list[Snapshot] = field(default_factory=list)  # by ascending length

    @property
    def bytes(self) -> int:
        """Bytes of its layers, including their unused capacity, and of its snapshots."""
        return sum(map(memory, self.cache.layers)) + sum(each.nbytes for each in self.marks)

    def mark(self) -> None:
        """Take a snapshot, unless the cache can be cropped to any length or is short."""
        if self.cache.get_seq_length() < MARK_EVERY or cuts_anywhere(self.cache):
            return
        found = Snapshot(self.cache)
        others = [each for each in self.marks if each.length < found.length]
        self.marks = [*others, found][-MAX_MARKS:]

    def last_mark(self, whole: int) -> int:
        """Return where to take the last snapshot in a prompt of ``whole`` tokens; 0: nowhere."""
        at = (whole - 1) // MARK_EVERY * MARK_EVERY
        return at if forgets(self.cache, at) else 0

    def reach(self, prompt: Int32) -> int:
        """Return the length of the longest prefix of a prompt that the cache can be cropped to."""
        common = common_prefix(self.tokens, prompt)
        whole = not self.busy and (common == len(self.tokens) or cuts_anywhere(self.cache))
        if whole or copies_anywhere(self.cache):
            return common
        lengths = [each.length for each in self.marks if each.length <= common]
        return max(lengths, default=0)


def common_prefix(first: Int32, second: Int32) -> int:
    """How many tokens two texts, int32 (n,) and (m,), begin with in common."""
    shorter = min(len(first), len(second))
    differ = first[:shorter] != second[:shorter]
    return int(differ.argmax()) if differ.any() else shorter


@dataclass(slots=True)
class CachePool:
    """The caches of one model, used by one thread; a busy one is never cropped or evicted."""

    make: Callable[[], Any]  # returns an empty cache
    max_bytes: int
    max_bytes_of_user: int
    why_afresh: str | None = None  # why this model's caches cannot be kept
    # That share ``max_bytes`` equally for answers beyond the places, see ``crowded``.
    users: int = 1
    copies: int = 0  # caches that were copied
    evicted: int = 0  # caches that were dropped to make room
    afresh: int = 0  # requests that got an empty cache because of ``why_afresh``
    _caches: list[Lease] = field(default_factory=list)
    _clock: int = 0

    def take(self, user: str, prompt: Int32) -> Lease:
        """Lend a user's cache that holds a prefix of a prompt, at most all but its last token."""
        self.afresh += self.why_afresh is not None
        lease = None if self.why_afresh else self._find(user, prompt)
        if lease is None:
            lease = Lease(user, self.make())
            self._caches.append(lease)
        lease.busy, lease.reused = True, len(lease.tokens)
        return lease

    def give_back(self, lease: Lease, tokens: Int32, prompt: int) -> None:
        """Return a cache to the pool, which keeps it if there is room."""
        held = int(lease.cache.get_seq_length())
        self._clock += 1
        lease.tokens, lease.prompt = tokens[:held].copy(), min(held, prompt)
        lease.busy, lease.used = False, self._clock
        if self.why_afresh is not None or not len(lease.tokens):
            self.drop(lease)
        own = [each for each in self._idle if each.user == lease.user]
        self._make_room(own, self.max_bytes_of_user)
        self._make_room(self._idle, self.max_bytes)

    def crowded(self, leases: Sequence[Lease]) -> set[str]:
        """The users whose caches among these, which are in use, exceed their share of the memory.

        Idle caches are dropped to make room for all of these.
        """
        held = Counter[str]()
        for lease in leases:
            held[lease.user] += lease.bytes
        self._make_room(self._idle, self.max_bytes - held.total())
        share = min(self.max_bytes // self.users, self.max_bytes_of_user)
        return {user for user, count in held.items() if count > share}

    def drop(self, lease: Lease) -> None:
        self._caches = [each for each in self._caches if each is not lease]

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self._idle)

    @property
    def _idle(self) -> list[Lease]:
        return [each for each in self._caches if not each.busy]

    def _find(self, user: str, prompt: Int32) -> Lease | None:
        """The best cache of a user, cropped or copied; None if none is useful."""

        def by_length(found: tuple[int, Lease]) -> tuple[int, int]:
            return found[0], found[1].used

        own = [each for each in self._caches if each.user == user]
        found = [(each.reach(prompt[:-1]), each) for each in own]
        idle = [(length, each) for length, each in found if not each.busy]
        cut = [(length, each) for length, each in idle if length >= MIN_KEPT_SHARE * each.prompt]
        length, lease = max(cut, key=by_length, default=(0, None))
        longest, source = max(found, key=by_length, default=(0, None))
        if source is not None and longest >= max(MIN_COPIED_TOKENS, 2 * length):
            return self._copy(source, longest)
        if lease is None or not length:
            return None
        if length < len(lease.tokens):
            _give(lease.cache, lease, length)
        lease.tokens = lease.tokens[:length]
        lease.marks = [each for each in lease.marks if each.length <= length]
        return lease

    def _copy(self, source: Lease, length: int) -> Lease:
        copy = Lease(source.user, self.make(), source.tokens[:length].copy())
        _give(copy.cache, source, length)
        copy.marks = [each for each in source.marks if each.length <= length]
        self.copies += 1
        self._caches.append(copy)
        return copy

    def _make_room(self, caches: Sequence[Lease], limit: int) -> None:
        """Drop the least recently used caches until the others fit."""
        total = sum(each.bytes for each in caches)
        for each in sorted(caches, key=lambda each: each.used):
            if total <= limit:
                return
            total -= each.bytes
            self.evicted += 1
            self.drop(each)


def _give(cache: Any, source: Lease, length: int) -> None:
    """Give a cache the first ``length`` positions of a lease's cache, see ``Lease.reach``."""
    exact = [each for each in source.marks if each.length == length]
    if exact:
        exact[0].restore(cache, source.cache)
        return
    copy_positions(cache, source.cache, length)


def cache_maker(model: Any) -> Callable[[], Any]:
    """A function that makes empty caches for a model; they grow in place, without copies."""

    def make() -> Any:
        cache = new_cache(model.config)
        for part in parts_of(cache):
            part.grow_in_place()
        return cache

    return make


def why_not_kept(model: Any) -> str | None:
    """Why a model's caches cannot be used by later requests, or None."""
    ids = torch.ones((1, 1), dtype=torch.int64, device=device_of(model))
    cache = KVCache(cache_maker(model)())
    facts = facts_of(model, ids, model.generation_config, {}, cache)
    return why_unsupported(Ability.KEPT, facts)


def free_bytes(model: Any) -> int | None:
    """Free memory of the model's device; None: unknown."""
    device = device_of(model)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
