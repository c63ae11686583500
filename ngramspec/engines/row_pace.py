"""What the steps of an engine's batch give, and whether requests follow those that ended."""

from __future__ import annotations

from collections import deque

STEPS = 64  # of the past that a rate is of, in the mean
PLAIN = 8.0  # steps of one token each, without drafts, that it begins with, in each batch
PATIENCE = 16  # steps in which the request that follows another one comes
HEARD = 0.1  # weight of an ended request in what is expected of the next
# Where requests begin together, a step is saved only if the slowest rows need one less: a token
# must be worth so much more than its part of a step's cost.
TOGETHER = 0.2


class Pace:
    """What drafts are judged by, beside their probabilities and costs.

    Attributes:
        rate: tokens of a row per cost of its steps, >= 1, a plain step's cost being 1.
        refilled: share of ended requests, 0 at first, that were followed by others while the batch
            went on. Where it is 1 a server is busy all the time, and any token of any row is worth
            the same; where it is 0 requests begin together, and who asked waits for the slowest.

    Example:
        >>> pace = Pace()
        >>> for _ in range(1000):
        ...     pace.step(rows=2, kept=2, tokens=6)
        ...     pace.drafted(cost=1.5)
        >>> round(pace.rate, 2)
        2.0
    """

    def __init__(self) -> None:
        self.refilled = 0.0
        self._tokens = self._cost = PLAIN
        self._last = 1.0  # cost of the step that is under way
        self._rows = 0
        self._steps = 0
        self._ended: deque[int] = deque()  # when those did that nobody followed yet

    @property
    def rate(self) -> float:
        """See the class."""
        return max(self._tokens / self._cost, 1.0)

    def price(self, rows: int) -> float:
        """Tokens of each of so many rows that the cost of a step without drafts must give."""
        return self.rate * (1.0 if rows == 1 else 1.0 + TOGETHER * (1.0 - self.refilled))

    def step(self, rows: int, kept: int, tokens: int) -> None:
        """Take a step of the engine in.

        Args:
            rows: that have tokens now.
            kept: of those, the ones that had some in the step before.
            tokens: new ones of the kept rows.
        """
        self._steps += 1
        if kept:
            fade = 1.0 - 1.0 / STEPS
            self._tokens = fade * self._tokens + tokens / kept
            self._cost = fade * self._cost + self._last
        came, ended = rows - kept, self._rows - kept
        self._rows = rows
        if not kept:  # the batch has ended: who comes now follows nobody, and has other texts
            self._hear(0.0, len(self._ended))
            self._tokens = self._cost = PLAIN
            return
        self._ended.extend([self._steps] * ended)
        self._hear(1.0, min(came, len(self._ended)))
        late = sum(self._steps - each >= PATIENCE for each in self._ended)
        self._hear(0.0, late)

    def drafted(self, cost: float) -> None:
        """The step that begins costs so much, in steps of as many rows without drafts."""
        self._last = cost

    def _hear(self, followed: float, many: int) -> None:
        """So many requests, those that ended first, were followed by others, or were not."""
        for _ in range(many):
            self._ended.popleft()
            self.refilled += HEARD * (followed - self.refilled)
