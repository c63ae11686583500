"""Width of a target's forwards: that of the draft, or padded to a fixed width or one of a few.

A kernel may round a position differently in a wider forward. If all forwards have the same width,
and no other part of their shape depends on the drafts, then drafts do not change the rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from ngramspec.errors import UnsupportedError, check_int
from ngramspec.hf_model.cache.kv_cache import KVCache

FIT = "fit"
WIDTH_MULTIPLE = 8  # positions; divides the number of rows that CPU kernels process at once
MAX_WIDTH = 4096  # positions
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


def check_width(width: int | str, gamma: int | str) -> int | str:
    """Return ``width`` if it is "fit", or a multiple of 8 above gamma, up to 4096.

    Raises:
        TypeError, ValueError: any other width.
    """
    if isinstance(width, str):
        if width != FIT:
            raise ValueError(f"width must be an integer or {FIT!r}, got {width!r}")
        return width
    check_int("width", width, WIDTH_MULTIPLE, MAX_WIDTH)
    if width % WIDTH_MULTIPLE:
        raise ValueError(f"width must be a multiple of {WIDTH_MULTIPLE}, got {width}")
    if isinstance(gamma, int) and gamma >= width:
        raise ValueError(
            f"gamma must be below width = {width}, which holds the last committed token too,"
            f" got {gamma}"
        )
    return width


def make_room(
    cache: KVCache, config: Any, needed: int, widest: int, *, fixed: bool, compiled: bool
) -> int | None:
    """Resize a static cache for the widest forward, or return the key length of a dynamic one.

    With a fixed width, the size of a static cache made by ``generate``, and thus the number of keys
    attended to, depends on the request alone. Otherwise it does not shrink from one call to the
    next, as in ``generate``, so that compiled graphs are reused. An UnsupportedError is raised if
    the caller's own static cache is too small for a fixed width.

    Args:
        cache: before the prefill.
        config: the GenerationConfig.
        needed: positions that every forward of the generation fits in.
        widest: positions of the widest forward.
        fixed: whether all forwards have that width.
        compiled: whether the forwards are compiled.
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
