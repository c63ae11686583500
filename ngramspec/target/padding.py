"""How wide a target's forwards are: as the draft is, padded to one width, or to one of a few.

A kernel may round a position differently in a wider forward. Where every forward has one width and
nothing else of its shape depends on the drafts either, what the drafter says moves no rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from ngramspec.errors import check_int

FIT = "fit"
STEP = 8  # rows that the kernels of CPUs take at once, or a divisor of that
WIDEST = 4096


class Widths:
    """The widths that a generation's forwards may have.

    Args:
        sizes: ascending; empty: any width.
    """

    def __init__(self, sizes: tuple[int, ...] = ()) -> None:
        self.sizes = sizes

    def of(self, positions: int) -> int:
        """The width to run ``positions`` in, of which ``most`` allows so many."""
        return self.sizes[bisect_left(self.sizes, positions)] if self.sizes else positions

    def most(self, slots: int | None) -> int | None:
        """Most positions of a forward that writes into ``slots`` free ones; None: any number."""
        if not self.sizes:
            return slots
        if slots is None:
            return self.sizes[-1]
        return self.sizes[max(bisect_right(self.sizes, slots) - 1, 0)]


def check_width(width: int | str, gamma: int | str) -> int | str:
    """Return a valid ``width`` argument: "fit", or a multiple of 8 above gamma, up to 4096.

    Raises:
        TypeError, ValueError: it is not; the message says why.
    """
    if isinstance(width, str):
        if width != FIT:
            raise ValueError(f"width must be an integer or {FIT!r}, got {width!r}")
        return width
    check_int("width", width, STEP, WIDEST)
    if width % STEP:
        raise ValueError(f"width must be a multiple of {STEP}, got {width}")
    if isinstance(gamma, int) and gamma >= width:
        raise ValueError(
            f"gamma must be below width = {width}, which holds the last committed token too,"
            f" got {gamma}"
        )
    return width


def rope_types(config: Any) -> set[str]:
    """The kinds of rotary positions of a text config, such as "default" and "longrope"."""
    return {str(each.get("rope_type")) for each in _ropes(config)}


def rope_turn(config: Any) -> int | None:
    """From which length on a forward's rotary frequencies are others, for all its positions."""
    turns = [
        int(each["original_max_position_embeddings"])
        for each in _ropes(config)
        if each.get("rope_type") == "longrope" and "original_max_position_embeddings" in each
    ]
    return min(turns, default=None)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The rotary parameters of a config, or of each kind of its layers."""
    given = getattr(config, "rope_parameters", None) or {}
    each = [given, *given.values()]
    return [one for one in each if isinstance(one, dict) and "rope_type" in one]


def needed_positions(target: Any, widest: int) -> int:
    """Positions of a cache in which forwards of ``widest`` always fit.

    Args:
        target: not yet prefilled.
        widest: what its forwards have at most.
    """
    config, embeds = target.config, target.kwargs.get("inputs_embeds")
    prompt = int((target.prompt if embeds is None else embeds).shape[1])
    mask = target.kwargs.get("attention_mask")
    told = getattr(config, "_mask_length", -1) if mask is None else mask.shape[1]
    if told != prompt:  # a kept cache, and only what is new behind it
        prompt += target.cache.length()
    new = int(config.max_length) - int(target.prompt.shape[1])
    return prompt + new - 2 + widest  # the last forward begins with the last token but one
