"""The shapes of the forwards after the prefill, and whether they are compiled.

A forward is as wide as the draft, or padded to a fixed width or one of a few. A kernel may round a
position differently in a wider forward. If all forwards have the same width, and no other part of
their shape depends on the drafts, then drafts do not change the rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.abilities import Ability, obstacle
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.call import Known
from ngramspec.hf_model.compat import hf_private

if TYPE_CHECKING:
    from ngramspec.hf_model.compiled import Graphs

CACHE_SIZE_MULTIPLE = 256  # positions; sizes of compiled calls are rounded up to it; not tuned


def least_width(widths: Sequence[int], positions: int) -> int:
    """Return the least of the allowed widths that is >= ``positions``.

    ``widths`` are ascending; empty: any width is allowed. ``positions`` must be at most
    ``most_positions``.
    """
    return widths[bisect_left(widths, positions)] if widths else positions


def most_positions(widths: Sequence[int], slots: int | None) -> int | None:
    """Return the maximum positions of a forward with ``slots`` free ones in the cache.

    None: no limit. ``widths`` are as in ``least_width``.
    """
    if not widths or slots is None:
        return widths[-1] if widths else slots
    return widths[max(bisect_right(widths, slots) - 1, 0)]


class ForwardShapes:
    """The widths of a generation's forwards, and the number of keys that they attend to.

    The constructor also resizes a static cache made by ``generate`` to what the widths need.

    Attributes:
        widths: allowed widths of the forwards, ascending; empty: any width.
        keys: number of positions that forwards over a dynamic cache attend to, including masked
            ones; None: those that the cache holds, or the cache is static.
        run: the model, or its compiled forward.
    """

    def __init__(
        self,
        known: Known,
        cache: KVCache,
        *,
        width: int | None,
        compiled: bool | None,
        gamma_max: int,
    ) -> None:
        model, config = known.model, known.config
        self.widths: tuple[int, ...] = () if width is None else (width,)
        reason = None if width is None else obstacle(Ability.FIXED_WIDTH, known)
        if reason is not None:
            raise UnsupportedError(f"width={width} is not supported with {reason}")
        self._graphs: Graphs | None = None
        if should_compile(known, compiled):
            from ngramspec.hf_model.compiled import Graphs, bucket_sizes  # few calls compile

            if width is None:
                self.widths = bucket_sizes(gamma_max + 1)
            self._graphs = Graphs(model, config, len(self.widths))
        self.run: Callable[..., Any] = model if self._graphs is None else self._graphs
        self.keys: int | None = None
        if self.widths:
            # The last forward begins with the second-to-last token.
            new = int(config.max_length) - known.call.prompt
            needed = known.call.end + new - 2 + self.widths[-1]
            if cache.capacity is None:
                self.keys = needed
            else:
                self._make_room(cache, cache.capacity, needed, config, fixed=width is not None)

    def _make_room(
        self, cache: KVCache, capacity: int, needed: int, config: Any, *, fixed: bool
    ) -> None:
        """Resize a static cache that ``generate`` made to ``needed`` positions or more.

        With a ``fixed`` width, its size, and thus the number of keys attended to, depends on the
        request alone. Otherwise it does not shrink from one call to the next, as in ``generate``,
        so that compiled graphs are reused.
        """
        widest = self.widths[-1]
        if config.cache_implementation is not None:  # generate made it
            needed = max(needed, config.max_cache_len or 0)
            if not fixed:
                needed = max(needed, capacity + widest - 1)
            if self._graphs is not None:
                needed = -(-needed // CACHE_SIZE_MULTIPLE) * CACHE_SIZE_MULTIPLE
            cache.resize(needed)
        elif fixed and capacity < needed:
            raise UnsupportedError(
                f"width={widest} needs a static cache of {needed} positions, the one given has"
                f" {capacity}: make it with max_cache_len={needed}, or pass"
                " cache_implementation='static'"
            )

    @property
    def compiling(self) -> bool:
        """Whether the last forward spent its time compiling."""
        return self._graphs is not None and self._graphs.compiled


def should_compile(known: Known, compiled: bool | None) -> bool:
    """Whether a call's forwards are compiled; an UnsupportedError if ``compiled`` cannot be."""
    if compiled is False or known.config.disable_compile:
        return False
    reason = obstacle(Ability.COMPILED, known)
    if compiled and reason is not None:
        raise UnsupportedError(f"compiled=True is not supported with {reason}")
    if compiled or reason is not None:
        return reason is None
    return hf_private.compiles_by_default(known.model, known.kwargs, known.config)
