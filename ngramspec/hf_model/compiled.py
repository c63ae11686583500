"""The shapes of the forwards after the prefill, and compiled forwards.

A forward is as wide as the draft, or padded to a fixed width or one of a few. A kernel may round a
position differently in a wider forward. If no part of the forwards' shape depends on the drafts,
then drafts do not change the rounding.

Compiled forwards have one graph for each of a few widths. Rollback changes a tensor in place, and
the mask is an input. So one graph serves all calls whose static caches have the same size. To make
equal sizes likely, cache sizes are rounded up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compat.factories import compile_settings
from ngramspec.hf_model.compat.forwards import compiles_by_default
from ngramspec.hf_model.facts import Ability, Facts, why_unsupported

CACHE_SIZE_MULTIPLE = 256  # positions; so many lengths share a graph


class ForwardShapes:
    """The widths of a generation's forwards, and the number of keys that they attend to.

    Attributes:
        widths: allowed widths of the forwards, ascending; empty: any width.
        keys: positions that forwards over a dynamic cache attend to; None: those that it holds.
        capacity: positions that a static cache needs after the prefill; None: it is dynamic.
        run: the model, or its compiled forward.
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
        model, config = facts.model, facts.config
        self.widths: tuple[int, ...] = () if width is None else (width,)
        reason = None if width is None else why_unsupported(Ability.FIXED_WIDTH, facts)
        if reason is not None:
            raise UnsupportedError(f"width={width} is not supported with {reason}")
        self._graphs: Graphs | None = None
        if should_compile(facts, compiled):
            if width is None:
                self.widths = bucket_sizes(gamma_max + 1)
            self._graphs = Graphs(model, config, len(self.widths))
        self.run: Callable[..., Any] = model if self._graphs is None else self._graphs
        self.keys: int | None = None
        self.capacity: int | None = None
        if facts.static:
            self.capacity = facts.longest - 1 if cache.capacity is None else cache.capacity
        if not self.widths:
            return
        widest, capacity, fixed = self.widths[-1], self.capacity, width is not None
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
            if not fixed:
                needed = max(needed, capacity + widest - 1)
            if self._graphs is not None:
                needed = -(-needed // CACHE_SIZE_MULTIPLE) * CACHE_SIZE_MULTIPLE
            self.capacity = needed
        elif fixed and capacity < needed:
            raise UnsupportedError(
                f"width={widest} needs a static cache of {needed} positions, the one given has"
                f" {capacity}: make it with max_cache_len={needed}, or pass"
                " cache_implementation='static'"
            )

    def least_width(self, positions: int) -> int:
        """Return the least of the allowed widths that is >= ``positions``."""
        return self.widths[bisect_left(self.widths, positions)] if self.widths else positions

    def rooms(self, capacity: int | None, slots: int) -> list[int]:
        """Return the limits of a draft's length, given the cache's capacity and its length."""
        widths, free = self.widths, None if capacity is None else capacity - slots
        if widths and free is not None:
            return [widths[max(bisect_right(widths, free) - 1, 0)] - 1]
        return [each - 1 for each in (*widths[-1:], free) if each is not None]

    @property
    def compiling(self) -> bool:
        return self._graphs is not None and self._graphs.compiled


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


MAX_CACHE_SIZES = 8  # cache sizes that graphs are kept for; dynamo's default recompile limit


def bucket_sizes(widest: int) -> tuple[int, ...]:
    """Return the widths to compile for: powers of two up to 3/4 of ``widest``, and ``widest``."""
    powers = [1 << i for i in range(widest.bit_length()) if 4 << i <= 3 * widest]
    return (*powers, widest)


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


class Graphs:
    """A model's compiled forward; ``compiled``: whether its last call compiled something."""

    def __init__(self, model: Any, config: Any, widths: int) -> None:
        settings = compile_settings(model, config)
        if settings.dynamic is None:
            settings.dynamic = False
        self._call: Callable[..., Any] = model.get_compiled_call(settings)
        self._limit = MAX_CACHE_SIZES * widths
        self.compiled = False

    def __call__(self, **inputs: Any) -> Any:
        import torch._dynamo.config as dynamo

        before = compilations()
        limit = max(self._limit, dynamo.recompile_limit)  # a graph for every width and cache size
        with dynamo.patch(recompile_limit=limit):
            outputs = self._call(**inputs)
        self.compiled = compilations() != before
        return outputs
