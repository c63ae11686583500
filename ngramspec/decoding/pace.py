"""How long the forwards of the target and of heads take, to state the costs of heads."""

from __future__ import annotations

import math

MEMORY = 0.9  # weight of earlier forwards in an average duration; not tuned
MIN_PREFILL_POSITIONS = 32  # in shorter prefills, fixed costs dominate; not tuned


class Pace:
    """The average duration of the target's forwards, in which heads state their costs.

    ``target`` is in seconds per row, for a forward of one position, and ``reading`` in seconds per
    position of the prefill; None: not measured.
    """

    def __init__(self) -> None:
        self.target: float | None = None
        self.reading: float | None = None

    def record(self, seconds: float, relative: float, rows: int) -> None:
        """Record a forward of ``rows`` rows, of ``relative`` cost to one of one position."""
        self.target = averaged(self.target, seconds / max(relative, 1.0) / rows)

    def record_prefill(self, seconds: float, positions: int) -> None:
        """Record a prefill of ``positions`` in all rows. If they are few, reading is free."""
        self.reading = seconds / positions if positions >= MIN_PREFILL_POSITIONS else 0.0


def averaged(average: float | None, value: float) -> float:
    """A decaying average with one more value."""
    return value if average is None else MEMORY * average + (1 - MEMORY) * value


class HeadPace:
    """The cost of a head's forward, at first ``assumed`` and then measured.

    It is relative to a forward of the target, whose duration is in ``pace``.
    """

    def __init__(self, pace: Pace, assumed: float) -> None:
        self._pace, self._assumed = pace, assumed
        self._seconds: float | None = None
        self._forwards = 0

    def record(self, seconds: float) -> None:
        """Record a forward; the first one, in which caches are cold, is ignored."""
        self._forwards += 1
        if self._forwards > 1:
            self._seconds = averaged(self._seconds, seconds)

    def reading_cost(self, tokens: int) -> float:
        """Cost of reading many tokens at once; infinite until the target's forwards are timed."""
        if self._pace.reading is None or not self._pace.target:
            return math.inf
        return self._assumed * tokens * self._pace.reading / self._pace.target

    @property
    def cost(self) -> float:
        """Cost of a forward in the target's one-position forwards, for one row."""
        if self._seconds is None or not self._pace.target:
            return self._assumed
        return self._seconds / self._pace.target
