"""How wide a target's forwards are: as the draft is, padded to one width, or to one of a few.

A kernel may round a position differently in a wider forward. Where all forwards have one width, and
nothing else of their shape depends on the drafts, the drafter changes no rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from ngramspec.errors import UnsupportedError, check_int
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.compiled import CACHE_SIZE_MULTIPLE

FIT = "fit"
WIDTH_MULTIPLE = 8  # of widths: rows that a CPU's kernels take at once, or a divisor of that
WIDEST = 4096


class Widths:
    """The widths that a generation's forwards may have.

    Args:
        sizes: ascending; empty: any width.
    """

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self.sizes = sizes

    def of(self, positions: int) -> int:
        """The width to run ``positions`` in: the least that holds them, at most ``most``."""
        return self.sizes[bisect_left(self.sizes, positions)] if self.sizes else positions

    def most(self, slots: int | None) -> int | None:
        """Most positions of a forward, with ``slots`` free ones in the cache; None: any number."""
        if not self.sizes:
            return slots
        if slots is None:
            return self.sizes[-1]
        return self.sizes[max(bisect_right(self.sizes, slots) - 1, 0)]


def check_width(width: int | str, gamma: int | str) -> int | str:
    """Return ``width`` if it is "fit", or a multiple of 8 above gamma, up to 4096.

    Raises:
        TypeError, ValueError: it is not; the message says why.
    """
    if isinstance(width, str):
        if width != FIT:
            raise ValueError(f"width must be an integer or {FIT!r}, got {width!r}")
        return width
    check_int("width", width, WIDTH_MULTIPLE, WIDEST)
    if width % WIDTH_MULTIPLE:
        raise ValueError(f"width must be a multiple of {WIDTH_MULTIPLE}, got {width}")
    if isinstance(gamma, int) and gamma >= width:
        raise ValueError(
            f"gamma must be below width = {width}, which holds the last committed token too,"
            f" got {gamma}"
        )
    return width


def needed_positions(end: int, new: int, widest: int) -> int:
    """Positions of a cache in which every forward of a generation fits.

    Args:
        end: positions behind the prefill.
        new: tokens that may be generated.
        widest: positions of the widest forward.
    """
    return end + new - 2 + widest  # the last forward begins with the last token but one


def make_room(
    cache: KVCache, config: Any, needed: int, widest: int, *, fixed: bool, compiled: bool
) -> int | None:
    """Make a cache large enough for the widest forward, or say how far to stretch it.

    With a fixed width, the size of a static cache that ``generate`` made depends on the request
    alone, and so does the length that is attended to. Otherwise it does not shrink from one call to
    the next, as in ``generate``, so that compiled graphs serve again.

    Args:
        cache: before the prefill.
        config: the GenerationConfig.
        needed: as ``needed_positions``.
        widest: positions of the widest forward.
        fixed: whether all forwards are that wide.
        compiled: whether the forwards are compiled.

    Returns:
        How many positions a dynamic cache has to attend to; None: the cache is static.

    Raises:
        UnsupportedError: the caller's own static cache is too small for a fixed width.
    """
    capacity = cache.capacity
    if capacity is None:
        return needed
    if config.cache_implementation is not None:  # generate made it
        needed = max(needed, config.max_cache_len or 0)
        if not fixed:
            needed = max(needed, capacity + widest - 1)
        if compiled:
            needed = -(-needed // CACHE_SIZE_MULTIPLE) * CACHE_SIZE_MULTIPLE
        cache.resize(needed)
    elif fixed and capacity < needed:
        raise UnsupportedError(
            f"width={widest} needs a static cache of {needed} positions, the one given has"
            f" {capacity}: make it with max_cache_len={needed}, or pass"
            " cache_implementation='static'"
        )
    return None
