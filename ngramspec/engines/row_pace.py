"""Tracks the tokens per cost of an engine's steps, and whether ended requests are replaced."""

from __future__ import annotations

from collections import deque

# These constants are not tuned.
RATE_WINDOW_STEPS = 64  # time constant of the exponential average of the rate
PRIOR_PLAIN_STEPS = 8.0  # plain steps of one token each that every batch's rate starts with
MAX_REFILL_STEPS = 16  # steps within which a new request counts as replacing an ended one
REFILL_WEIGHT = 0.1  # weight of one ended request in the share of replaced ones
# If requests start together, a step is saved only if the slowest rows need one step less. So a
# token's gain must exceed its share of the step's cost by this fraction.
UNREFILLED_MARGIN = 0.2


class Pace:
    """The criteria for drafts in addition to their probabilities and costs.

    Attributes:
        rate: a row's tokens per cost of its steps, >= 1, where a plain step costs 1.
        refilled: share of ended requests that were replaced while the batch continued, at first 0.
            1: the server is always busy, and tokens of all rows have the same value. 0: requests
            start together, and all wait for the slowest.

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
        self._tokens = self._cost = PRIOR_PLAIN_STEPS
        self._last = 1.0  # cost of the current step
        self._rows = 0
        self._steps = 0
        self._ended: deque[int] = deque()  # steps at which requests ended that are not replaced yet

    @property
    def rate(self) -> float:
        """See the class's attributes."""
        return max(self._tokens / self._cost, 1.0)

    def price(self, rows: int) -> float:
        """Tokens per row that each unit of cost must yield in a batch of ``rows`` rows."""
        return self.rate * (1.0 if rows == 1 else 1.0 + UNREFILLED_MARGIN * (1.0 - self.refilled))

    def step(self, rows: int, kept: int, tokens: int) -> None:
        """Record a step of the engine.

        Of ``rows`` rows with new tokens, ``kept`` had some in the step before, too; these got
        ``tokens`` new tokens in total.
        """
        self._steps += 1
        if kept:
            fade = 1.0 - 1.0 / RATE_WINDOW_STEPS
            self._tokens = fade * self._tokens + tokens / kept
            self._cost = fade * self._cost + self._last
        started, ended = rows - kept, self._rows - kept
        self._rows = rows
        if not kept:  # the batch has ended; new requests replace none and have other texts
            self._record_ended(0.0, len(self._ended))
            self._tokens = self._cost = PRIOR_PLAIN_STEPS
            return
        self._ended.extend([self._steps] * ended)
        self._record_ended(1.0, min(started, len(self._ended)))
        late = sum(self._steps - each >= MAX_REFILL_STEPS for each in self._ended)
        self._record_ended(0.0, late)

    def drafted(self, cost: float) -> None:
        """Set the next step's cost, relative to one of equally many rows without drafts."""
        self._last = cost

    def _record_ended(self, followed: float, many: int) -> None:
        """Record of the ``many`` oldest ended requests whether they were replaced: 1 or 0."""
        for _ in range(many):
            self._ended.popleft()
            self.refilled += REFILL_WEIGHT * (followed - self.refilled)
