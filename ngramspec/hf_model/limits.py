"""Maximum draft length, given the positions that the model supports."""

from __future__ import annotations

from ngramspec.hf_model.call import CallTraits
from ngramspec.hf_model.traits import Traits

MAX_PREFILL_DRAFT_TOKENS = 1 << 20  # for models without a position limit


class DraftLimits:
    """The maximum draft length at each point of a generation.

    Attributes:
        unaligned: why nothing can be drafted, as in CallTraits; None: drafts are allowed.

    Args:
        traits: of the model.
        call: of the call.
        next_position: position of the first generated token according to ``position_ids``; 0: the
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
        """Whether the prefill has ended."""
        return self._prefilled is not None

    def stop_drafting(self, reason: str) -> None:
        """Allow no further drafts."""
        self.unaligned = reason

    def prefill(self) -> int:
        """Maximum number of draft tokens that the prefill can verify."""
        if self._position_limit is None:
            return MAX_PREFILL_DRAFT_TOKENS
        return self._position_limit - max(self._end, self._next_position)

    def longest(self, new: int, width: int | None) -> int | None:
        """Maximum draft length after ``new`` generated tokens of each row; None: no limit.

        No forward has more than ``width`` positions, and none crosses a length at which the model
        computes its positions differently (``Traits.thresholds``). The first forward after that
        length may read all tokens again, so it has no draft. Rotary frequencies depend on
        positions, and reading again on the number of tokens, so both are compared with them.
        """
        if self.unaligned is not None:
            return 0
        rooms = [] if width is None else [width - 1]
        if self._prefilled is not None:
            ends = self._prefilled + new, self._next_position + new  # by tokens, by positions
            if self._position_limit is not None:
                rooms.append(self._position_limit - max(ends))
            for threshold in self._thresholds:
                rooms += [threshold - end for end in ends if end <= threshold + 1]
        return max(min(rooms), 0) if rooms else None
