"""A synthetic drafting head of known accuracy, played along recorded outputs."""

from __future__ import annotations

import numpy as np

from ngramspec.draft import Float32, Int32
from ngramspec.measure.traces import Trace

ACCURACIES = (0.8, 0.65, 0.5, 0.4)  # of the synthetic head by depth, if all before is right
NOISE = 0.5  # standard deviation of the log-odds of its probabilities
CONCENTRATION = 3.0  # of the beta distribution of the probability that it is right
TOP = 8  # tokens of a row


class SyntheticRows:
    """A head that is right with known probabilities, and says so with some noise.

    Its first token at depth d is right with a probability that is drawn from a beta distribution
    with mean ``ACCURACIES[d]``. Its log-odds, with normal noise, are the head's own probability.
    A wrong first token is one of the target's recorded top 8. The right token then has a random
    rank. After wrong draft tokens it behaves as elsewhere, but nothing is right.
    """

    ahead: int | None = len(ACCURACIES)

    def __init__(self, trace: Trace, seed: int) -> None:
        self._output, self._top_tokens = trace.output, trace.top_tokens
        name = int.from_bytes(f"{trace.group} {trace.id}".encode()[-8:], "big")
        self._seed = (seed, name)

    def row(self, at: int, depth: int, recorded: bool) -> tuple[Int32, Float32]:
        """The head's tokens and log-probabilities, int32 and float32 (8,).

        Args:
            at: position in the output that the row is about.
            depth: draft tokens between the committed ones and this position.
            recorded: whether these draft tokens are the recorded ones.
        """
        rng = np.random.default_rng((*self._seed, at, depth, recorded))
        mean = ACCURACIES[min(depth, len(ACCURACIES) - 1)]
        chance = float(rng.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean)))
        chance = min(max(chance, 0.02), 0.98)
        odds = np.log(chance / (1 - chance)) + rng.normal(0, NOISE)
        first = float(1 / (1 + np.exp(-odds)))
        right = int(self._output[at])
        place = at
        if not recorded:
            place = int(rng.integers(0, len(self._output)))
            right = int(self._output[place])
        others = self._others(place, right, rng)
        if rng.random() < chance:
            tokens = [right, *others[: TOP - 1]]
        else:
            tokens = others[: TOP - 1]
            tokens.insert(int(rng.integers(1, TOP)), right)
        rest = (1 - first) * 0.5 ** np.arange(1, TOP)
        probs = np.array([first, *np.minimum(rest, first)], np.float32)
        return np.array(tokens, np.int32), np.log(probs)

    def _others(self, at: int, right: int, rng: np.random.Generator) -> list[int]:
        """The target's top tokens at a position but the right one, in an order of their ranks."""
        known: list[int] = []
        if self._top_tokens is not None:
            known = [each for each in self._top_tokens.ids[at].tolist() if each not in (right, -1)]
        while len(known) < TOP:
            token = int(rng.integers(0, 1 << 15))
            known += [token] if token != right and token not in known else []
        first = int(rng.choice(3, p=(0.6, 0.25, 0.15)))
        return [known[first], *known[:first], *known[first + 1 :]]


class RecordedHead:
    """A DraftModel that plays a recorded head; the tokens read show where it is.

    Args:
        trace: the recorded output.
        rows: the head along it.
        cost: of a row, in forwards of the target.
    """

    room: int | None = None
    vocab: int | None = None
    ready = True

    def __init__(self, trace: Trace, rows: SyntheticRows, cost: float) -> None:
        self.ahead, self._rows, self._cost = rows.ahead, rows, cost
        self._said = [*trace.prompt.tolist(), *trace.output.tolist()]
        self._prompt = len(trace.prompt)
        self._read: list[int] = []
        self._committed = 0
        self.paid = 0.0

    def reading_cost(self, tokens: int) -> float:
        return 0.0

    def cost(self, last: int) -> float:
        """The cost of ``last`` rows."""
        return self._cost * last

    def commit(self, length: int) -> None:
        """See DraftModel."""
        self._committed = length

    def forward(self, tokens: Int32, last: int, most: int) -> tuple[Int32, Float32]:
        """See DraftModel."""
        self._read += tokens.tolist()
        self.paid += self.cost(last)
        ends = range(len(self._read) - last + 1, len(self._read) + 1)
        rows = [self._row(end) for end in ends]
        return np.stack([ids for ids, _ in rows]), np.stack([probs for _, probs in rows])

    def _row(self, end: int) -> tuple[Int32, Float32]:
        begin = self._committed
        recorded = self._read[begin:end] == self._said[begin:end]
        at = min(end, len(self._said) - 1) - self._prompt
        return self._rows.row(at, end - begin, recorded)

    def truncate(self, length: int) -> None:
        """See DraftModel."""
        del self._read[length:]
