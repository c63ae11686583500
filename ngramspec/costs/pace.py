"""The duration of the target's forwards, as the unit in which heads state their costs."""

from __future__ import annotations

MEMORY = 0.9  # weight of earlier forwards in an average; not tuned


class Pace:
    """Average durations of the target's forwards and of a head's, in one generation.

    Attributes:
        target: seconds of a forward of one position, divided by the number of rows; None: not
            measured.
    """

    def __init__(self) -> None:
        self.target: float | None = None

    def record(self, seconds: float, relative: float, rows: int) -> None:
        """Record a forward of the target.

        Args:
            seconds: its duration.
            relative: its cost relative to a forward of one position.
            rows: number of rows of the batch.
        """
        self.target = averaged(self.target, seconds / max(relative, 1.0) / rows)


class HeadPace:
    """The cost of a head's forward, at first assumed and then measured.

    Args:
        pace: of the generation.
        assumed: cost of a forward relative to one of the target.
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

    @property
    def cost(self) -> float:
        """Cost of a forward in the target's one-position forwards, for one row."""
        if self._seconds is None or not self._pace.target:
            return self._assumed
        return self._seconds / self._pace.target


def averaged(average: float | None, value: float) -> float:
    """A decaying average with one more value."""
    return value if average is None else MEMORY * average + (1 - MEMORY) * value
