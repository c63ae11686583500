"""Twin of the context table: the leading continuations of every context."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.twins.common import Tokens

LEADERS, FADE_AT = 3, 255


@dataclass
class Slot:
    """One context: its leading continuations, the most recent first, and all that followed."""

    leaders: list[list[int]] = field(default_factory=list)  # [token, count]
    total: int = 0
    last: int = -1
    most: int = LEADERS  # continuations kept

    def note(self, token: int, at: int) -> None:
        """Count a continuation; a new one takes the place of the rarest, the oldest of equals."""
        mine = next((each for each in self.leaders if each[0] == token), None)
        if mine is None:
            if len(self.leaders) == self.most:
                rarest = min(count for _, count in self.leaders)
                self.leaders.remove([each for each in self.leaders if each[1] == rarest][-1])
            mine = [token, 0]
        else:
            self.leaders.remove(mine)
        self.leaders.insert(0, [token, mine[1] + 1])
        self.total += 1
        self.last = at
        if self.total == FADE_AT:
            self.total = FADE_AT // 2
            for each in self.leaders:
                each[1] //= 2

    def leader(self) -> int:
        """The most frequent continuation, the most recent of equals."""
        return max(self.leaders, key=lambda each: each[1])[0]

    def count(self, token: int) -> int:
        """How often ``token`` followed, as far as that is kept."""
        return next((count for each, count in self.leaders if each == token), 0)


class ContextTable:
    """Leading continuations by (seed, context)."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, tuple[int, ...]], Slot] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, context: Tokens, token: int, at: int, seed: int = 0) -> None:
        """Count that ``token``, at position ``at``, followed a context."""
        key = (seed, tuple(int(each) for each in context))
        self.slots.setdefault(key, Slot()).note(token, at)

    def get(self, context: Tokens, seed: int = 0) -> tuple[list[tuple[int, int]], int, int] | None:
        """([(token, count), ...] by recency, total, last position), or None if never seen."""
        slot = self.slots.get((seed, tuple(int(each) for each in context)))
        if slot is None:
            return None
        return [(token, count) for token, count in slot.leaders], slot.total, slot.last
