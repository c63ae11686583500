"""The shapes of the forwards after the prefill, and compiled forwards.

A forward over a dynamic cache is as wide as the draft, or padded to a fixed width. Over a static
cache it is padded to one of at most four widths, each of which is compiled by itself. A kernel may
round a position differently in a wider forward. If no part of the forwards' shape depends on the
drafts, then drafts do not change the rounding.

Rollback changes a tensor in place, and the mask is an input. So one graph serves all calls whose
static caches have the same size. To make equal sizes likely, cache sizes are rounded up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable
from itertools import combinations
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ngramspec.draft import Float64
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.factories import compile_settings
from ngramspec.hf_model.compat.forwards import compiles_by_default, forget_compiled_call
from ngramspec.hf_model.facts import Ability, Facts, why_unsupported

CACHE_SIZE_MULTIPLE = 256  # positions; so many lengths share a graph
ROOM_FOR_ROWS = 65  # least positions after a text, in which the slowest of several rows ends
MAX_WIDTHS = 4  # of forwards over a static cache
MAX_RUNS = 4  # of a forward to be compiled: it is compiled, run once, and captured
MAX_FIRST_COST = 2.0  # of the wide forward that is compiled first, relative to one position


class ForwardShapes:
    """The widths of a generation's forwards, and the number of keys that they attend to.

    Attributes:
        widths: allowed widths of the forwards, ascending; empty: any width.
        missing: further widths, which are to be compiled when the generation has ended.
        keys: positions that forwards over a dynamic cache attend to; None: those that it holds.
        capacity: positions that a static cache needs after the prefill; None: it is dynamic.
        graphs: the model's compiled forward; None: forwards are not compiled.
    """

    def __init__(
        self,
        facts: Facts,
        cache: KVCache,
        *,
        width: int | None,
        compiled: bool | None,
        gamma_max: int,
    ) -> None:
        model, config, fixed = facts.model, facts.config, width is not None
        reason = why_unsupported(Ability.FIXED_WIDTH, facts) if fixed else None
        if reason is not None:
            raise UnsupportedError(f"width={width} is not supported with {reason}")
        self.graphs = Graphs.of(model, config) if should_compile(facts, compiled) else None
        self.widths: tuple[int, ...] = () if width is None else (width,)
        self.missing: tuple[int, ...] = ()
        self._fixed = fixed
        self._ahead = True
        self._ends = facts.longest <= facts.end + 1  # the prefill is the only forward
        if not fixed and why_unsupported(Ability.COMPILED, facts) is None:
            drafts = why_unsupported(Ability.DRAFTS, facts) is None
            self.widths = tuple(sorted({1, gamma_max + 1 if drafts else 1}))
        self._widest = max(self.widths, default=1)
        self.keys: int | None = None
        self.capacity: int | None = None
        if facts.static:
            self.capacity = facts.longest - 1 if cache.capacity is None else cache.capacity
        if self.widths:
            self._size_cache(facts, cache)
        # What a graph depends on besides its width.
        given = (name for name, value in facts.kwargs.items() if value is not None)
        self._key = facts.rows, self.capacity, self._widest, *sorted(given)

    def _size_cache(self, facts: Facts, cache: KVCache) -> None:
        """Set the numbers of keys and positions, so that the widest forward fits at the end."""
        config, widest, capacity = facts.config, self._widest, self.capacity
        if facts.rows > 1 and not self._fixed:
            widest = max(widest, ROOM_FOR_ROWS)
        # The last forward begins with the second-to-last token.
        needed = facts.longest - 2 + widest
        if capacity is None:
            self.keys = needed
        elif config.cache_implementation is not None or cache.capacity is None:
            # generate made it, or all its layers have windows
            needed = max(needed, config.max_cache_len or 0)
            # With a fixed width, the number of keys attended to depends on the request alone.
            # Otherwise the cache does not shrink from one call to the next, as in ``generate``, so
            # that compiled graphs are reused.
            if not self._fixed:
                needed = max(needed, capacity + widest - 1)
            if self.graphs is not None:
                needed = -(-needed // CACHE_SIZE_MULTIPLE) * CACHE_SIZE_MULTIPLE
            self.capacity = needed
        elif self._fixed and capacity < needed:
            raise UnsupportedError(
                f"width={widest} needs a static cache of {needed} positions, the one given has"
                f" {capacity}: make it with max_cache_len={needed}, or pass"
                " cache_implementation='static'"
            )

    def choose(self, costs: Callable[[int], Float64], *, ahead: bool) -> None:
        """Choose the widths: those that are compiled, or at first one position and a wide forward.

        ``costs(n)`` returns the times of forwards of 1 to n positions, float64 (n,). If not
        ``ahead``, all are allowed, and each is compiled when it is first needed.
        """
        self._ahead = ahead
        if self._fixed or not self.widths:
            return
        graphs, times = self.graphs, costs(self._widest)
        ready = () if graphs is None else graphs.ready(self._key)
        every = choose_widths(times, ready)
        wide = [width for width in every if times[width - 1] <= MAX_FIRST_COST * times[0]]
        first = every if graphs is None or not ahead else ready or {1, max(*wide, *every[:2])}
        self.widths = tuple(sorted(first))
        self.missing = tuple(width for width in every if width not in first)

    def to_compile(self, *, missing: bool = False) -> list[int]:
        """The allowed widths that are not compiled, or else the missing ones, which are allowed."""
        if self.graphs is None or self._ends or not self._ahead:
            return []
        if missing:
            self.widths, self.missing = tuple(sorted((*self.widths, *self.missing))), ()
        ready = self.graphs.ready(self._key)
        return [width for width in self.widths if width not in ready]

    def compile(self, widths: Iterable[int], run: Callable[[int], None]) -> None:
        """Let ``run`` run forwards of these widths, until nothing is compiled in them."""
        graphs, found = self.graphs, False
        assert graphs is not None
        for width in widths:
            for _ in range(MAX_RUNS):
                run(width)
                found |= graphs.compiled
                if not graphs.compiled:
                    break
            graphs.ready(self._key).add(width)
        graphs.compiled = found

    def least_width(self, positions: int) -> int:
        """Return the least of the allowed widths that is >= ``positions``."""
        return self.widths[bisect_left(self.widths, positions)] if self.widths else positions

    def is_full(self, slots: int) -> bool:
        """Whether the widest forward does not fit into a static cache that holds ``slots``."""
        return self.capacity is not None and slots + self._widest > self.capacity

    def rooms(self, capacity: int | None, slots: int) -> list[int]:
        """Return the limits of a draft's length, given the cache's capacity and its length."""
        widths, free = self.widths, None if capacity is None else capacity - slots
        if widths and free is not None:
            return [widths[max(bisect_right(widths, free) - 1, 0)] - 1]
        return [each - 1 for each in (*widths[-1:], free) if each is not None]


def choose_widths(costs: Float64, known: Iterable[int] = ()) -> tuple[int, ...]:
    """At most MAX_WIDTHS widths, ascending: 1, the widest, and the ``known`` ones.

    Powers of two are added with which forwards, when padded, take the least time. This assumes that
    the number of positions that a step needs is log-uniform. ``costs`` are the times of forwards of
    1 to n positions, float64 (n,), where n is the widest width.
    """
    widest = len(costs)
    found = {1, widest, *known}
    powers = [1 << i for i in range(1, widest.bit_length()) if 4 << i <= 3 * widest]
    others = [power for power in powers if power not in found]
    positions = np.arange(1, widest + 1)

    def time(added: Iterable[int]) -> float:
        widths = np.array(sorted({*found, *added}))
        padded = widths[np.searchsorted(widths, positions)]
        return float((costs[padded - 1] / positions).sum())

    places = min(max(MAX_WIDTHS - len(found), 0), len(others))
    return tuple(sorted({*found, *min(combinations(others, places), key=time)}))


def should_compile(facts: Facts, compiled: bool | None) -> bool:
    """Whether a call's forwards are compiled; an UnsupportedError if ``compiled`` cannot be."""
    if compiled is False or facts.config.disable_compile:
        return False
    reason = why_unsupported(Ability.COMPILED, facts)
    if compiled and reason is not None:
        raise UnsupportedError(f"compiled=True is not supported with {reason}")
    if compiled or reason is not None:
        return reason is None
    return compiles_by_default(facts.model, facts.kwargs, facts.config)


def compilations() -> int:
    """Return how often torch began to compile or record a graph, since the first call of this."""
    from torch._dynamo.callback import callback_handler

    started = callback_handler.start_callbacks
    if _begun not in started:
        started.append(_begun)
    return _beginnings


_beginnings = 0


def _begun(*_: Any) -> None:
    global _beginnings
    _beginnings += 1


MAX_CACHE_SIZES = 8  # cache sizes that graphs are kept for; dynamo's default recompile limit

# By model, and by what a graph depends on besides its width: the widths that are compiled.
_ready: WeakKeyDictionary[Any, dict[Hashable, set[int]]] = WeakKeyDictionary()


class Graphs:
    """A model's compiled forward; ``compiled``: whether its last call compiled something."""

    def __init__(self, model: Any, settings: Any) -> None:
        self._call = model.get_compiled_call(settings)
        self._settings = str(settings.to_dict())
        self._ready = _ready.setdefault(model, {})
        self.compiled = False

    @classmethod
    def of(cls, model: Any, config: Any) -> Graphs | None:
        """Those of a model; None: transformers does not compile it (Llama 4)."""
        settings = compile_settings(model, config)
        if settings.dynamic is None:
            settings.dynamic = False
        found = cls(model, settings)
        return None if isinstance(found._call, MethodType) else found

    def ready(self, key: Hashable) -> set[int]:
        """The widths that are compiled; the caller may add some."""
        return self._ready.setdefault((self._settings, key), set())

    def __call__(self, **inputs: Any) -> Any:
        import torch._dynamo.config as dynamo

        before = compilations()
        # A graph for every width and cache size.
        limit = max(MAX_CACHE_SIZES * MAX_WIDTHS, dynamo.recompile_limit)
        with dynamo.patch(recompile_limit=limit):
            outputs = self._call(**inputs)
        self.compiled = compilations() != before
        return outputs


def forget_graphs(model: Any) -> None:
    """Make a model compile its forwards again."""
    forget_compiled_call(model)
    _ready.pop(model, None)
