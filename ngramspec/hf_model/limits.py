"""How many tokens a draft may have, by the positions that the model knows."""

from __future__ import annotations

from ngramspec.hf_model.call import CallTraits
from ngramspec.hf_model.traits import Traits

LONGEST_PREFILL_DRAFT = 1 << 20  # tokens, for models without a limit


class DraftLimits:
    """The longest draft at each point of a generation.

    Attributes:
        unaligned: why nothing can be drafted, as in CallTraits; None: drafts are allowed.

    Args:
        traits: of the model.
        call: of the call.
        next_position: the position of the first generated token, as ``position_ids`` say; 0: the
            model counts positions itself.
    """

    def __init__(self, traits: Traits, call: CallTraits, next_position: int) -> None:
        self.unaligned = call.unaligned
        self._position_limit = traits.position_limit
        self._thresholds = traits.thresholds
        self._end = call.end
        self._next_position = next_position
        self._prefilled: int | None = None

    def begin(self, length: int) -> None:
        """Count from the end of the prefill, with ``length`` positions in the cache."""
        self._prefilled = length

    @property
    def begun(self) -> bool:
        """Whether the prefill has come to its end."""
        return self._prefilled is not None

    def stop_drafting(self, reason: str) -> None:
        """Allow no drafts from here on."""
        self.unaligned = reason

    def prefill(self) -> int:
        """Most tokens of a draft that the prefill checks."""
        if self._position_limit is None:
            return LONGEST_PREFILL_DRAFT
        return self._position_limit - max(self._end, self._next_position)

    def longest(self, new: int, width: int | None) -> int | None:
        """Most tokens of a draft behind ``new`` generated ones; None: any number.

        No forward reaches over a length at which the model computes its positions differently
        (``Traits.thresholds``). The first forward behind that length may read all tokens again, so
        it has no draft. Rotary frequencies depend on positions, reading again depends on the number
        of tokens.

        Args:
            new: generated tokens of each row.
            width: most positions of the forward; None: any number.
        """
        if self.unaligned is not None:
            return 0
        rooms = [] if width is None else [width - 1]
        if self._prefilled is not None:
            ends = {self._prefilled + new, self._next_position + new}  # by tokens, by positions
            if self._position_limit is not None:
                rooms.append(self._position_limit - max(ends))
            for threshold in self._thresholds:
                rooms += [threshold - end for end in ends if end <= threshold + 1]
        return max(min(rooms), 0) if rooms else None
