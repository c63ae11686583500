"""What consulting a drafting head is worth, learned from earlier times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Not tuned one by one:
CONFIDENCE_BOUNDS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95, 0.98)  # buckets of a confidence
DEPTHS = 6  # buckets of the number of draft tokens before
GUESS = 0.8  # P(a head's first token is right) before anything was seen
FADED = 100.0  # most earlier times that a mean remembers
PRIOR_TIMES = 15.0  # times that the initial value of a mean counts as
PATIENCE, MOST_PATIENCE = 16, 256  # steps between trials of a head that does not pay
PEAKS = 10  # buckets of the highest probability of a head's distribution


class _Means:
    """Running means by bucket, which begin with the values of ``prior``."""

    def __init__(self, prior: NDArray[np.float64]) -> None:
        self.values, self._times = prior, np.full(prior.shape, PRIOR_TIMES)

    def learn(self, at: int | tuple[int, int], value: float) -> None:
        """Learn a value of the bucket ``at``."""
        self._times[at] = min(self._times[at] + 1, FADED)
        self.values[at] += (value - self.values[at]) / self._times[at]


class HeadWorth:
    """Means over all sequences of a drafter. They contain no text. Threads may share it: a lost
    update changes drafts, never the output.

    ``gain`` is what a row of the head added to the expected tokens of the draft less what the draft
    then costs more, by the confidence of the token that would be drafted without it and by depth.
    ``accepted`` is the share of sampled tokens that the target accepted, by the highest probability
    of the distribution that they were sampled from.
    """

    def __init__(self) -> None:
        middles = np.array([0.05, 0.18, 0.33, 0.48, 0.63, 0.75, 0.85, 0.93, 0.965, 0.99])
        prior = np.maximum(GUESS - middles, 0.1 * (1 - middles))
        self._gain = _Means(np.repeat(prior[:, None], DEPTHS, axis=1))
        self._accepted = _Means((np.arange(PEAKS) + 0.5) / PEAKS * 0.6 + 0.35)
        self._skipped, self._patience = 0, PATIENCE

    def gain(self, confidence: float, depth: int) -> float:
        """The mean gain of a row at a position that is reached."""
        return float(self._gain.values[_cell(confidence, depth)])

    def learn_gain(self, confidence: float, depth: int, gain: float) -> None:
        """Learn what a row has added."""
        self._gain.learn(_cell(confidence, depth), gain)

    def should_retry(self, cost: float) -> bool:
        """Count a step in which the head does not pay; whether to try it nevertheless.

        ``cost``: of the trial, relative to that of a head that has read the text.
        """
        self._skipped += 1
        if self._skipped < self._patience * cost:
            return False
        self._skipped, self._patience = 0, min(2 * self._patience, MOST_PATIENCE)
        return True

    def pays(self) -> None:
        """Note that the head pays: if it no longer does, it is tried again soon."""
        self._skipped, self._patience = 0, PATIENCE

    def accepted(self, peak: float) -> float:
        """P(a token is accepted) that is sampled from a distribution with this maximum."""
        return float(self._accepted.values[_peak(peak)])

    def learn_accepted(self, peak: float, accepted: bool) -> None:
        """Learn whether a sampled token was accepted."""
        self._accepted.learn(_peak(peak), accepted)


def _cell(confidence: float, depth: int) -> tuple[int, int]:
    return int(np.searchsorted(CONFIDENCE_BOUNDS, confidence)), min(depth, DEPTHS - 1)


def _peak(probability: float) -> int:
    return min(int(probability * PEAKS), PEAKS - 1)
